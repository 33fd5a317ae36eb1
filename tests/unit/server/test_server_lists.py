"""Lists of the server: what is asked for is found, however much else there is."""

from __future__ import annotations

import base64
from typing import Any

from scanflow_server.store import intent_store, label_store
from scanflow_server.store.base import Store
from scanflow_server.store.label_store import LabelCandidate
from tests.server import bearer
from tests.unit.server.server_rows import Api, enter_run, make_action_row

DATABASES = ["sqlite", "postgresql"]

# -- runs


def test_a_long_training_is_found_beside_a_workflow_that_runs_all_the_time(api: Api) -> None:
    training = enter_run(api.context, workflow="training")
    for number in range(30):
        enter_run(api.context, workflow="inference")
        enter_run(api.context, workflow="training", app=f"other-{number}")
        enter_run(api.context, workflow="training", team="others")
    asked: dict[str, Any] = {"app": "mnist", "team": "data", "workflow": "training", "limit": 10}
    assert [run["name"] for run in api.get("/runs", params=asked).json()] == [training]
    assert len(api.get("/runs", params={"app": "mnist", "limit": 100}).json()) == 61
    assert len(api.get("/runs", params={"limit": 100}).json()) == 91
    assert api.get("/runs", params={"workflow": "nothing"}).json() == []
    assert api.get("/runs", params={"app": ""}).status_code == 422


# -- intents


def test_what_a_strategy_wanted_is_found_beside_another_that_is_refused_all_the_time(api: Api) -> None:
    swap = {"agent": "executor", "strategy": "change_model_transition", "key": "k"}
    with api.context.store.write() as connection:
        intent_store.add(connection, make_action_row("mine", "succeeded", "act", **swap))
        intent_store.add(connection, make_action_row("waits", "pending", "approve", **{**swap, "key": "k2"}))
        for number in range(20):
            intent_store.add(connection, make_action_row(f"no-{number}"))
            intent_store.add(connection, make_action_row(f"mine-no-{number}", **{**swap, "key": f"no-{number}"}))
            intent_store.add(
                connection, make_action_row(f"team-{number}", "succeeded", "act", **swap, team=f"t{number}")
            )
            intent_store.add(connection, make_action_row(f"app-{number}", "succeeded", "act", **swap, app=f"a{number}"))
    of = {"app": "mnist", "team": "tests", "agent": "executor", "strategy": "change_model_transition"}
    acted: dict[str, Any] = {**of, "verdict": ["act", "queue", "approve"], "limit": 5}
    assert ids(api, acted) == ["waits", "mine"]
    assert ids(api, {**acted, "verdict": "act"}) == ["mine"]
    assert ids(api, {**acted, "state": ["pending", "running"]}) == ["waits"]
    assert len(ids(api, {**of, "limit": 100})) == 22
    assert ids(api, {"agent": "executor", "app": "mnist", "state": "pending"}) == ["waits"]
    assert ids(api, {**acted, "strategy": "change"}) == []
    assert api.get("/intents", params=acted).json() == [api.get(f"/intents/{id}").json() for id in ("waits", "mine")]
    assert api.get("/intents", params={"verdict": "perhaps"}).status_code == 422


def test_what_is_wanted_of_a_target_is_found_by_it(api: Api) -> None:
    run: dict[str, Any] = {
        "primitive": "run_workflow",
        "arguments": {"workflow": "training"},
        "target": "workflow/training",
        "fields": ("running",),
    }
    stop = {**run, "primitive": "stop_workflow"}
    with api.context.store.write() as connection:
        intent_store.add(connection, make_action_row("mine", "running", "act", **run))
        for number in range(20):
            intent_store.add(connection, make_action_row(f"done-{number}", "succeeded", "act", **run))
            intent_store.add(connection, make_action_row(f"stop-{number}", "pending", "suggest", **stop))
            intent_store.add(connection, make_action_row(f"app-{number}", "running", "act", **run, app=f"a{number}"))
            intent_store.add(connection, make_action_row(f"else-{number}", "pending", "suggest"))
    open_ones = {"app": "mnist", "team": "tests", "state": ["pending", "running"], "limit": 5}
    assert ids(api, {**open_ones, "target": "workflow/training", "primitive": "run_workflow"}) == ["mine"]
    assert ids(api, {**open_ones, "target": "service/serve", "limit": 1}) == ["else-19"]
    assert ids(api, {"target": "workflow/training", "app": "a7"}) == ["app-7"]
    assert len(ids(api, {"target": "service/serve", "limit": 100})) == 20


def ids(api: Api, asked: dict[str, Any]) -> list[str]:
    reply = api.get("/intents", params=asked)
    assert reply.status_code == 200, reply.text
    return [label["id"] for label in reply.json()]


# -- labels


def test_of_given_labels_the_newest_come_first_and_all_are_reached_a_part_at_a_time(store: Store) -> None:
    scores = [0.9, None, 0.1, None, 0.5, None, 0.7]
    with store.write() as connection:
        wanted = [LabelCandidate(id=f"p{number}", score=score) for number, score in enumerate(scores)]
        label_store.enqueue(connection, "mnist", wanted, at=1.0)
        label_store.enqueue(connection, "other", wanted, at=1.0)
        for at, number in enumerate([3, 0, 5, 1, 6]):
            label_store.Labeller("ada", app="mnist").assign(connection, f"p{number}", 7, at=10.0 + at // 2)
    with store.read() as connection:
        labels = label_store.list_labels(connection, app="mnist", state="given", limit=100)
        assert [label.id for label in labels] == ["p6", "p5", "p1", "p3", "p0"]
        assert [label.id for label in label_store.list_labels(connection, app="mnist", state="given", limit=2)] == [
            "p6",
            "p5",
        ]
        parts = [
            label.id
            for offset in range(0, 6, 2)
            for label in label_store.list_labels(connection, app="mnist", state="given", limit=2, offset=offset)
        ]
        assert parts == [label.id for label in labels]
        waits = label_store.list_labels(connection, app="mnist", state="wanted", limit=100)
        assert [wait.id for wait in waits] == ["p4", "p2"]
        every = label_store.list_labels(connection, app="mnist", limit=100)
        assert [label.id for label in every] == ["p0", "p6", "p4", "p2", "p1", "p3", "p5"], "the most critical first"


def test_a_mistyped_label_is_replaced_where_that_is_said_and_what_was_said_before_is_kept(api: Api) -> None:
    wanted = {"app": "mnist", "items": [{"id": "a/1", "run": "r", "data": {"image": "1.png"}, "guess": 3}]}
    assert api.post("/labels", json=wanted).json() == api.post("/labels", json=wanted).json(), "once asked for, it is"
    ada = bearer(api.post("/tokens", json={"name": "ada"}).json()["token"])
    api.post("/labels/a/1", json={"label": "thre"}, headers=ada)
    refused = api.post("/labels/a/1", json={"label": 3}, headers=ada)
    assert (refused.status_code, "'ada' has already labelled 'a/1' as 'thre'" in refused.json()["detail"]) == (
        400,
        True,
    )
    assert refused.json()["detail"].endswith("scanflow labels --give a/1=3 --replace")

    replaced = api.post("/labels/a/1", json={"label": 3, "replace": True}, headers=ada).json()
    again = api.post("/labels/a/1", json={"label": 3}, headers=ada).json()

    assert (replaced["label"], replaced["by"], replaced["guess"], replaced["disputed"]) == (3, "ada", 3, False)
    assert again == replaced
    assert api.get("/labels", params={"state": "given"}).json() == [replaced]
    for asked in ({"app": "nobody"}, {"app": "nobody", "offset": "5"}, {"offset": "1"}, {"disputed": "true"}):
        assert api.get("/labels", params=asked).json() == []
    assert api.get("/labels", params={"offset": -1}).status_code == 422
    ((first, second),) = [label["votes"] for label in api.get("/labels", params={"details": "true"}).json()]
    assert (first["label"], first["by"], second["label"]) == ("thre", "ada", 3)
    events = [(event["type"], event["data"]) for event in api.get("/events").json() if event["subject"] == "label/a/1"]
    data = {"id": "a/1", "run": "r", "by": "ada"}
    assert events == [
        ("label.added", {**data, "label": "thre"}),
        ("label.replaced", {**data, "label": 3, "before": "thre"}),
    ]


def test_people_who_disagree_are_both_kept_and_most_votes_decide_then_the_newest(api: Api) -> None:
    people = [bearer(api.post("/tokens", json={"name": name}).json()["token"]) for name in ("ada", "bob", "eve")]
    api.post("/labels", json={"app": "mnist", "items": [{"id": "p"}, {"id": "q"}]})

    def says(who: int, label: Any, **more: Any) -> tuple[Any, str, bool]:
        answer = api.post("/labels/p", json={"label": label, **more}, headers=people[who]).json()
        return answer["label"], answer["by"], answer["disputed"]

    assert says(0, 1) == (1, "ada", False)
    assert says(1, True) == (True, "bob", True), "a tie: the newest; and true is not 1"
    assert says(2, 1) == (1, "eve", True), "two of three"
    assert [listed_label["id"] for listed_label in api.get("/labels", params={"disputed": "true"}).json()] == ["p"]
    assert says(1, 1, replace=True) == (1, "bob", False), "all agree now"
    assert says(0, 2, replace=True) == (1, "bob", True), "one that is outvoted"
    (disputed_label,) = api.get("/labels", params={"disputed": "true", "details": "true"}).json()
    votes = [("ada", 1), ("bob", True), ("eve", 1), ("bob", 1), ("ada", 2)]
    assert [(vote["by"], vote["label"]) for vote in disputed_label["votes"]] == votes
    reports = [event["data"] for event in api.get("/events").json() if event["subject"] == "label/p"]
    assert [(report["label"], report.get("in_use")) for report in reports] == [
        (1, None),
        (True, True),
        (1, 1),
        (1, None),
        (2, 1),
    ]


def test_a_token_has_one_vote_whatever_programs_label_with_it(api: Api) -> None:
    ada, bob, bot = (
        bearer(api.post("/tokens", json={"name": name, "role": role}).json()["token"])
        for name, role in (("ada", "editor"), ("bob", "editor"), ("bot", "agent"))
    )
    api.post("/labels", json={"app": "mnist", "items": [{"id": "p"}, {"id": "q"}]})
    for who in (ada, bob):
        api.post("/labels/p", json={"label": "right"}, headers=who).raise_for_status()
    for via in ("p1", "p2", "p3, for ada", "p4, for bob"):
        api.post("/labels/p", json={"label": "wrong", "via": via}, headers=bot).raise_for_status()
    (sample,) = api.get("/labels", params={"disputed": "true", "details": "true"}).json()
    assert (sample["label"], [vote["by"] for vote in sample["votes"]]) == ("right", ["ada", "bob", "p1, for bot"])
    refused = api.post("/labels/p", json={"label": "left", "via": "mine.py"}, headers=ada)
    assert (refused.status_code, "'ada' has already labelled" in refused.text) == (400, True)
    own = api.post("/labels/p", json={"label": "wrong", "via": "mine.py", "replace": True}, headers=ada).json()
    assert (own["label"], own["by"]) == ("wrong", "mine.py, for ada")


def test_votes_that_were_recorded_for_each_program_are_read_as_one() -> None:
    votes = [label_store.Vote(by=f"p{number}, for bot", label="wrong", at=number) for number in range(3)]
    votes += [label_store.Vote(by=name, label="right", at=9.0) for name in ("ada", "bob")]
    assert label_store.tally_votes(votes) == (votes[-1], True)


def test_of_many_labels_all_are_taken_or_none_and_errors_name_their_lines(api: Api) -> None:
    api.post("/labels", json={"app": "mnist", "items": [{"id": id} for id in "abc"]})
    sent = [{"id": id, "label": 1, "line": line} for line, id in enumerate("abxa", start=2)]
    refused = api.patch("/labels", json={"labels": sent})
    assert refused.status_code == 400
    assert refused.json()["detail"].splitlines() == [
        "None of these labels was recorded, as 2 of them are invalid:",
        "- line 4: The label queue has no sample 'x'. List the samples: scanflow labels",
        "- line 5: 'a' occurs twice, the first time in line 2. Keep one.",
    ]
    answer = api.patch("/labels", json={"labels": sent[:3]})
    assert (answer.status_code, answer.json()["detail"][:19]) == (404, "line 4: The label q")
    assert api.get("/labels", params={"state": "given"}).json() == []
    assert [event for event in api.get("/events").json() if event["type"].startswith("label")] == []

    done = api.patch("/labels", json={"labels": sent[:2], "via": "labeller x"})
    assert [(label["id"], label["label"]) for label in done.json()] == [("a", 1), ("b", 1)]
    assert all(label["by"].startswith("labeller x, for ") for label in done.json())
    assert api.patch("/labels", json={"labels": sent[:2], "via": "labeller x"}).json() == done.json()
    (batch_event,) = (event for event in api.get("/events").json() if event["type"].startswith("label"))
    assert (batch_event["type"], batch_event["subject"], batch_event["data"]["count"]) == ("labels.given", "labels", 2)
    assert batch_event["data"]["by"] == done.json()[0]["by"]

    eve = bearer(api.post("/tokens", json={"name": "eve"}).json()["token"])
    api.patch("/labels", json={"labels": [{"id": "a", "label": 2}, {"id": "c", "label": 2}]}, headers=eve)
    batch_event = [
        (event["type"], event["subject"]) for event in api.get("/events").json() if event["type"].startswith("label")
    ]
    assert batch_event[1:] == [("label.added", "label/a"), ("labels.given", "labels")], "who disagrees is told of alone"


def test_a_point_keeps_its_purpose_and_its_values_and_a_list_leaves_out_what_is_large(api: Api) -> None:
    picture = base64.b64encode(b"\x89PNG\r\n\x1a\nrest").decode()
    row: dict[str, Any] = {"latitude": 1.5, "city": "Vic", "rooms": None}
    items = [{"id": "r", "purpose": "evaluate", "row": row}, {"id": "p", "picture": picture}]
    api.post("/labels", json={"app": "mnist", "items": items})
    assert [
        (label["purpose"], label["row"], label["picture"], label["votes"]) for label in api.get("/labels").json()
    ] == [("evaluate", None, None, None), ("train", None, None, None)]
    detailed = api.get("/labels", params={"details": "true"}).json()
    assert [(label["row"], label["picture"], label["votes"]) for label in detailed] == [
        (row, None, []),
        (None, picture, []),
    ]
    for wrong in ({"purpose": "both"}, {"picture": "no"}, {"picture": base64.b64encode(b"GIF89a").decode()}):
        assert api.post("/labels", json={"app": "mnist", "items": [{"id": "w", **wrong}]}).status_code == 422


def test_null_is_no_label_and_the_command_that_replaces_one_gives_just_that_label(api: Api) -> None:
    api.post("/labels", json={"app": "mnist", "items": [{"id": "p1"}]})
    for refused in (
        api.post("/labels/p1", json={"label": None}),
        api.patch("/labels", json={"labels": [{"id": "p1", "label": None}]}),
    ):
        assert (refused.status_code, "null is not a label" in refused.json()["detail"]) == (422, True)
    assert api.get("/labels", params={"state": "given"}).json() == []
    api.post("/labels/p1", json={"label": 1})
    for app, label, command in (
        (None, "a cat", "scanflow labels --give 'p1=a cat' --replace"),
        (None, "7", "scanflow labels --give 'p1=\"7\"' --replace"),
        ("mnist", True, "scanflow labels --app mnist --give p1=true --replace"),
    ):
        refused = api.post("/labels/p1", json={"label": label, "app": app})
        assert refused.json()["detail"].endswith(f"Replace that label: {command}")


def test_a_team_has_a_label_queue_of_its_own_and_what_is_nobody_s_is_everybody_s(api: Api) -> None:
    for team, ids in (("a", ["1", "2"]), ("b", ["2", "3"]), ("", ["4"])):
        body = {"app": "mnist", "items": [{"id": id} for id in ids]} | ({"team": team} if team else {})
        assert [label["team"] for label in api.post("/labels", json=body).json()] == [team] * len(ids)

    def list_of_team(team: str | None, state: str = "wanted") -> list[str]:
        asked = {"app": "mnist", "state": state} | ({"team": team} if team else {})
        return [label["id"] for label in api.get("/labels", params=asked).json()]

    assert (list_of_team("a"), list_of_team("b"), list_of_team(None)) == (
        ["1", "2", "4"],
        ["2", "3", "4"],
        ["1", "2", "2", "3", "4"],
    )
    several = api.post("/labels/2", json={"label": 7})
    assert several.status_code == 400
    assert "Several teams have '2' in their queues: mnist/a, mnist/b" in several.json()["detail"]
    assert "--app mnist --team b --give 2=LABEL" in several.json()["detail"]
    assert api.post("/labels/2", json={"label": 7, "team": "b"}).json()["team"] == "b"
    assert (list_of_team("a", "given"), list_of_team("b", "given")) == ([], ["2"])
    assert api.post("/labels/1", json={"label": 7, "team": "b"}).status_code == 404
    assert api.post("/labels/4", json={"label": 7, "team": "b"}).json()["team"] == ""
    again = {"app": "mnist", "team": "a", "items": [{"id": "4"}]}
    assert api.post("/labels", json=again).json()[0]["state"] == "given"
