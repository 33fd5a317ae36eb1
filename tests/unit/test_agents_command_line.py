"""Commands on agents, before a server and agents that answer as the real ones do."""

from __future__ import annotations

import functools
import getpass
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner, Result

from scanflow.agent.records import Action, Decision, Intent, PrimitiveCall, Sample
from scanflow.errors import InvalidError, NotFoundError, UnavailableError, UsageError
from scanflow.problems import problem_of
from scanflow.transport import ServerClient, async_client
from scanflow_client import agent_client
from scanflow_client.cli.app import app

URL = "http://127.0.0.1:46666"
FACE = "http://127.0.0.1:5001"
TRACKER = {
    "name": "tracker",
    "app": "mnist",
    "team": "data",
    "state": "running",
    "url": FACE,
    "pid": 7,
    "started": 1.0,
    "restarts": 2,
}
CHECKER = {"name": "checker", "app": "mnist", "team": "data", "state": "stopped"}
COUNT = {
    "name": "count",
    "trigger": {"kind": "interval", "seconds": 3600.0, "jitter": 0.0},
    "next": None,
    "last": 5.0,
    "fired": 12,
    "missed": 3,
    "errors": 1,
}
APP = """
import scanflow as sf

@sf.step
def load(count: int = 2) -> int:
    return count

app = sf.Application(
    name="mnist",
    workflows=[sf.Workflow(name="training", nodes=[load.bind()])],
    agents=[
        sf.Agent(name="tracker", modules=["tracker.py"]),
        sf.Agent(name="checker", template="checker", modules=["checker.py"]),
    ],
)
"""
Handler = Callable[[httpx.Request], httpx.Response]


def action(id: str = "a1", state: Any = "pending", verdict: Any = "approve", **changes: Any) -> Action:
    sample = Sample(id="s1", agent="tracker", sensor="count", at=1.0, value=1204, cause="interval:1")
    intent = Intent(
        id=id,
        app="mnist",
        team="data",
        agent="tracker",
        strategy="count",
        primitive="run_workflow",
        arguments={"workflow": "training"},
        target="workflow/training",
        fields=("running",),
        sample=sample,
        rule="n >= 1000, n=1204",
        key=f"tracker/count/{id}",
        at=1.0,
    )
    decision = Decision(intent=id, verdict=verdict, reason="It needs approval.", at=2.0)
    return Action(id=id, intent=intent, state=state, decision=decision, began=None, ended=None, **changes)


class StandIn:
    def __init__(self, answers: dict[str, Any]) -> None:
        self.answers = answers
        self.asked: list[tuple[str, dict[str, str], Any]] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        place = f"{request.method} {request.url.raw_path.decode().partition('?')[0].removeprefix('/api/v1')}"
        body = json.loads(request.content) if request.content else None
        self.asked.append((place, dict(request.url.params), body))
        answer = self.answers.get(place, NotFoundError(f"There is no {place}."))
        if callable(answer):
            answer = answer(request)
        if isinstance(answer, Exception):
            status, document = problem_of(answer)
            return httpx.Response(status, json=document)
        return httpx.Response(200, json=answer)


def run(monkeypatch: pytest.MonkeyPatch, answers: dict[str, Any] | Handler, *words: str) -> Result:
    handler = answers if callable(answers) else StandIn(answers)
    monkeypatch.setattr(
        "scanflow_client.cli.agents.server",
        lambda: ServerClient(URL, token="secret", transport=httpx.MockTransport(handler)),
    )
    return CliRunner().invoke(app, words, catch_exceptions=False)


@pytest.fixture
def face(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    found = StandIn({"GET /sensors": [COUNT]})
    transport = httpx.MockTransport(found)
    monkeypatch.setattr(async_client, "AsyncClient", functools.partial(async_client.AsyncClient, transport=transport))
    return found


@pytest.fixture
def folder(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "app.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "words",
    [
        ("agents",),
        ("agents", "mnist", "--stop"),
        ("agents", "--start", "app.py"),
        ("agents", "mnist:tracker", "--journal"),
        ("why",),
        ("why", "@latest"),
        ("approve",),
        ("approve", "a1"),
        ("labels",),
        ("labels", "--give", "1=2"),
    ],
)
def test_without_a_server_every_command_says_how_to_start_one(folder: Path, words: tuple[str, ...]) -> None:
    with pytest.raises(UnavailableError, match="Start it: scanflow up"):
        CliRunner().invoke(app, words, catch_exceptions=False)


def test_agents_are_listed_with_what_their_sensors_did(monkeypatch: pytest.MonkeyPatch, face: StandIn) -> None:
    answers = {"GET /agents": [CHECKER, TRACKER]}
    _, checker, tracker, after = run(monkeypatch, answers, "agents").stdout.splitlines()
    assert (checker.split()[0], tracker.split()[-2:]) == ("checker", ["3", "1"])
    assert after == "Show one: scanflow agents mnist:checker"
    told = json.loads(run(monkeypatch, answers, "agents", "--json").stdout)
    assert told[0]["sensors"] is None
    assert told[1]["sensors"] == [COUNT]


def test_the_server_s_token_is_not_told_to_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[httpx.Headers] = []

    def answer(request: httpx.Request) -> httpx.Response:
        heard.append(request.headers)
        return httpx.Response(200, json=[COUNT])

    face = functools.partial(async_client.AsyncClient, transport=httpx.MockTransport(answer))
    monkeypatch.setattr(async_client, "AsyncClient", face)
    run(monkeypatch, {"GET /agents": [TRACKER]}, "agents")
    assert ["authorization" in one for one in heard] == [False]


@pytest.mark.parametrize("target", ["tracker", "mnist:tracker", "mnist/tracker"])
def test_one_agent_is_shown_with_its_sensors(monkeypatch: pytest.MonkeyPatch, face: StandIn, target: str) -> None:
    lines = run(monkeypatch, {"GET /agents": [CHECKER, TRACKER]}, "agents", target).stdout.splitlines()
    assert lines[3] == f"mnist:tracker, at {FACE}"
    assert lines[-1].split()[:5] == ["count", "every", "1h", "00m", "12"]
    assert "checker" not in "".join(lines)


def test_an_agent_that_does_not_answer_is_listed_all_the_same(monkeypatch: pytest.MonkeyPatch, face: StandIn) -> None:
    face.answers["GET /sensors"] = UnavailableError("It is being stopped.")
    told = run(monkeypatch, {"GET /agents": [TRACKER]}, "agents").stdout
    assert "mnist:tracker did not report its sensors" in told
    assert "running" in told


def test_no_agent_is_said_to_be_so_and_an_unknown_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = run(monkeypatch, {"GET /agents": []}, "agents")
    assert nothing.stdout == "No agents. Start an application's: scanflow agents --start app.py\n"
    with pytest.raises(NotFoundError, match=r"'trackr'.*'tracker'"):
        run(monkeypatch, {"GET /agents": [TRACKER]}, "agents", "trackr", "--stop")
    with pytest.raises(NotFoundError, match="None was ever started"):
        run(monkeypatch, {"GET /agents": []}, "agents", "tracker")


def test_all_agents_of_an_application_are_started_or_one(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    server = StandIn({f"PUT /agents/mnist/{name}": CHECKER | {"name": name} for name in ("tracker", "checker")})
    told = run(monkeypatch, server, "agents", "--start", "app.py").stdout
    assert "mnist:tracker  stopped\nmnist:checker  stopped\n" in told
    assert [place for place, _, _ in server.asked] == ["PUT /agents/mnist/tracker", "PUT /agents/mnist/checker"]
    body = server.asked[0][2]
    assert body["source"] == str(folder / "app.py")
    assert body["application"]["app_dir"] == str(folder)
    server.asked.clear()
    run(monkeypatch, server, "agents", "--start", "app.py:checker", "--json")
    assert [place for place, _, _ in server.asked] == ["PUT /agents/mnist/checker"]
    with pytest.raises(NotFoundError, match="has no agent 'chekcer'"):
        run(monkeypatch, server, "agents", "--start", "app.py:chekcer")


def test_an_application_may_have_no_agents(monkeypatch: pytest.MonkeyPatch, home: Path, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP.partition("    agents=[")[0] + ")\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidError, match=r"'mnist' has no agents. Give it one: sf.Application"):
        run(monkeypatch, {}, "agents", "--start")


def test_an_application_s_agents_are_stopped_together(monkeypatch: pytest.MonkeyPatch) -> None:
    known: list[dict[str, Any]] = [CHECKER, TRACKER, TRACKER | {"app": "other"}]
    server = StandIn({"GET /agents": known, **{f"DELETE /agents/mnist/{one['name']}": one for one in known}})
    told = run(monkeypatch, server, "agents", "--stop", "mnist").stdout
    assert told.splitlines()[0] == "mnist:checker  stopped"
    assert [place for place, _, _ in server.asked[1:]] == [
        "DELETE /agents/mnist/checker",
        "DELETE /agents/mnist/tracker",
    ]
    with pytest.raises(InvalidError, match="Say which agent"):
        run(monkeypatch, server, "agents", "--stop")
    with pytest.raises(InvalidError, match="exclude each other"):
        run(monkeypatch, server, "agents", "mnist", "--stop", "--journal")


def test_a_journal_ends_with_the_newest_entries(monkeypatch: pytest.MonkeyPatch, face: StandIn) -> None:
    entries = [{"id": one, "at": 1.0, "kind": "sample", "subject": "count", "body": {}} for one in range(1, 8)]

    def journal(request: httpx.Request) -> Any:
        after, limit = (int(request.url.params[name]) for name in ("after", "limit"))
        return [one for one in entries if int(str(one["id"])) > after][:limit]

    face.answers["GET /journal"] = journal
    monkeypatch.setattr(agent_client, "PAGE", 3)
    words = ("agents", "tracker", "--journal", "--limit", "4")
    told = json.loads(run(monkeypatch, {"GET /agents": [TRACKER]}, *words, "--json").stdout)
    assert [one["id"] for one in told] == [4, 5, 6, 7]
    assert len(run(monkeypatch, {"GET /agents": [TRACKER]}, *words).stdout.splitlines()) == 4
    entries.clear()
    assert "Nothing has happened yet" in run(monkeypatch, {"GET /agents": [TRACKER]}, *words).stdout


def test_a_journal_is_one_running_agent_s(monkeypatch: pytest.MonkeyPatch, face: StandIn) -> None:
    with pytest.raises(InvalidError, match="mnist:checker, mnist:tracker"):
        run(monkeypatch, {"GET /agents": [CHECKER, TRACKER]}, "agents", "mnist", "--journal")
    with pytest.raises(UnavailableError, match="mnist:checker is stopped"):
        run(monkeypatch, {"GET /agents": [CHECKER]}, "agents", "checker", "--journal")
    with pytest.raises(NotFoundError):
        run(monkeypatch, {"GET /agents": [TRACKER]}, "agents", "tracker", "--journal")


def test_why_lists_what_was_wanted_and_tells_the_story_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    story = {"lines": ["sample    count", "effect    none yet"], "action": action().model_dump(mode="json")}
    answers = {"GET /intents": [story["action"]], "GET /intents/a1/why": story}
    server = StandIn(answers)
    heads, row, after = run(monkeypatch, server, "why", "--limit", "5").stdout.splitlines()
    assert heads.split() == "action when by primitive on status reason".split()
    assert "tracker/count  run_workflow  workflow/training  waiting for approval  It needs approval." in row
    assert after == "Explain one: scanflow why a1"
    assert server.asked[0][1] == {"limit": "5"}
    assert run(monkeypatch, answers, "why", "a1").stdout == "sample    count\neffect    none yet\n"
    assert run(monkeypatch, answers, "why", "@latest").stdout.startswith("sample    count")
    assert json.loads(run(monkeypatch, answers, "why", "@latest", "--json").stdout) == story
    assert "No agent has requested an action yet" in run(monkeypatch, {"GET /intents": []}, "why").stdout
    with pytest.raises(NotFoundError, match="No agent has requested an action yet"):
        run(monkeypatch, {"GET /intents": []}, "why", "@latest")


def queue(*waiting: Action) -> Callable[[httpx.Request], Any]:
    def answer(request: httpx.Request) -> Any:
        query = request.url.params
        return [
            one.model_dump(mode="json")
            for one in waiting
            if query.get("state") in {None, one.state} and query.get("verdict") in {None, one.decision.verdict}
        ][: int(query["limit"])]

    return answer


def test_what_waits_for_a_yes_is_listed_before_what_is_only_suggested(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"GET /intents": queue(action("s1", verdict="suggest"), action("a1"), action("d1", "succeeded", "act"))}
    heads, first, second, after = run(monkeypatch, answers, "approve").stdout.splitlines()
    assert heads.split() == "action when by requests on rule".split()
    assert 'run_workflow(workflow="training")  workflow/training  n >= 1000, n=1204' in first
    assert (first.split()[0], second.split()[0]) == ("a1", "s1")
    assert after.startswith("Approve: scanflow approve a1.")
    assert [one["id"] for one in json.loads(run(monkeypatch, answers, "approve", "--json").stdout)] == ["a1", "s1"]
    nothing = run(monkeypatch, {"GET /intents": []}, "approve")
    assert nothing.stdout == "No action is waiting for approval. See what was done: scanflow why\n"


def test_a_person_says_yes_or_no_by_name_and_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(getpass, "getuser", lambda: "ada")
    server = StandIn(
        {
            "GET /intents": queue(action("a2"), action("a1")),
            "POST /intents/a1/approve": action("a1", verdict="act").model_dump(mode="json"),
            "POST /intents/a2/refuse": action("a2", "refused", "refuse").model_dump(mode="json"),
        }
    )
    told = run(monkeypatch, server, "approve", "a1", "--reason", "looks right").stdout
    assert told.startswith('a1  run_workflow(workflow="training") on workflow/training: about to start.')
    assert told.endswith("See its effect: scanflow why a1\n")
    assert server.asked[-1] == ("POST /intents/a1/approve", {}, {"reason": "looks right"})
    refused = run(monkeypatch, server, "approve", "@latest", "--refuse", "--json")
    assert Action.model_validate_json(refused.stdout).id == "a2"
    assert [place for place, _, _ in server.asked if place.endswith("refuse")] == ["POST /intents/a2/refuse"]
    with pytest.raises(InvalidError, match="Keep one"):
        run(monkeypatch, server, "approve", "a1", "--refuse", "--revert")
    with pytest.raises(InvalidError, match="Say which action"):
        run(monkeypatch, server, "approve", "--refuse")
    with pytest.raises(NotFoundError, match="No action is waiting for approval"):
        run(monkeypatch, {"GET /intents": []}, "approve", "@latest")


def test_what_was_done_is_taken_back_and_said_to_be_only_when_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    done = action("d1", "succeeded", "act", inverse=PrimitiveCall(primitive="stop_workflow", arguments={}))
    back = done.model_copy(update={"state": "reverted", "reverted_by": "ada"})
    answers: dict[str, Any] = {"GET /intents": queue(done), "POST /intents/d1/revert": back.model_dump(mode="json")}
    assert "reverted. by ada" in run(monkeypatch, answers, "approve", "@latest", "--revert").stdout
    answers["POST /intents/d1/revert"] = done.model_dump(mode="json")
    with pytest.raises(UnavailableError, match=r"not reverted yet. See its status: scanflow why d1"):
        run(monkeypatch, answers, "approve", "d1", "--revert")
    answers["POST /intents/d1/revert"] = UsageError("nothing undoes it")
    with pytest.raises(UsageError, match="nothing undoes it"):
        run(monkeypatch, answers, "approve", "d1", "--revert")


def test_the_label_queue_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = {"id": "img/17", "app": "mnist", "run": "tall-fox", "data": {"index": 17}, "guess": 3, "score": 0.75}
    server = StandIn({"GET /labels": [wanted]})
    heads, row, after = run(monkeypatch, server, "labels", "--app", "mnist").stdout.splitlines()
    assert heads.split() == "id application prediction score run data".split()
    assert row.split() == ["img/17", "mnist", "3", "0.75", "tall-fox", "index=17"]
    assert after.startswith("Label one: scanflow labels --give img/17=LABEL")
    assert server.asked == [("GET /labels", {"app": "mnist", "state": "wanted", "limit": "100"}, None)]
    assert "These are the first 1." in run(monkeypatch, server, "labels", "-n", "1").stdout
    assert json.loads(run(monkeypatch, server, "labels", "--json").stdout) == [wanted]
    assert run(monkeypatch, {"GET /labels": []}, "labels").stdout == "No sample waits for a label.\n"


def test_labels_are_given_one_by_one_or_from_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(getpass, "getuser", lambda: "ada")
    file = tmp_path / "labels.csv"
    file.write_text('\ufeffid,label,score\nimg/17,7,0.5\nb,007,0.4\nc,,0.3\nd,"a, b",\n')
    server = StandIn({f"POST /labels/{id}": {"id": id} for id in ("img%2F17", "b", "d", "e", "f")})
    words = ("labels", "--app", "mnist", "--from", str(file), "--give", "e=NaN", "-g", 'f={"x": 1}')
    assert run(monkeypatch, server, *words).stdout.startswith("Labels given: 5.")
    assert [(place.rpartition("/")[2], body["label"]) for place, _, body in server.asked] == [
        ("img%2F17", 7),
        ("b", "007"),
        ("d", "a, b"),
        ("e", "NaN"),
        ("f", {"x": 1}),
    ]
    assert {body["app"] for _, _, body in server.asked} == {"mnist"}


def test_a_label_that_is_refused_ends_it_and_says_how_many_were_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"POST /labels/a": {"id": "a"}, "POST /labels/b": UsageError("'b' is labelled already.")}
    with pytest.raises(UsageError, match=r"'b' is labelled already.\nOf 3 labels, the 1 before it are kept."):
        run(monkeypatch, answers, "labels", "-g", "a=1", "-g", "b=1", "-g", "c=1")


def test_a_label_is_replaced_where_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    server = StandIn({"POST /labels/a": {"id": "a"}})
    run(monkeypatch, server, "labels", "--give", "a=7", "--replace")
    run(monkeypatch, server, "labels", "--give", "a=7")
    assert [body.get("replace") for _, _, body in server.asked] == [True, None]
    run(monkeypatch, server, "labels", "--give", "a=7", "--app", "mnist", "--team", "vision")
    assert [(body.get("app"), body.get("team")) for _, _, body in server.asked[1:]] == [
        (None, None),
        ("mnist", "vision"),
    ]
    with pytest.raises(InvalidError, match="--give ID=LABEL --replace"):
        run(monkeypatch, server, "labels", "--replace")


@pytest.mark.parametrize(
    ("text", "told"),
    [("id,lable\n1,2\n", "has no column 'label'"), ("", "has no column 'id'"), ("id,label\n1,\xff\n", "in UTF-8")],
)
def test_an_odd_file_sends_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "labels.csv").write_bytes(text.encode("latin-1"))
    server = StandIn({})
    with pytest.raises(InvalidError, match=told):
        run(monkeypatch, server, "labels", "--from", str(tmp_path / "labels.csv"))
    with pytest.raises(InvalidError, match="The label of 'b' is null"):
        run(monkeypatch, server, "labels", "-g", "a=1", "-g", "b=null")
    with pytest.raises(InvalidError, match="Write it as ID=LABEL"):
        run(monkeypatch, server, "labels", "--give", "17")
    with pytest.raises(NotFoundError, match="There is no file"):
        run(monkeypatch, server, "labels", "--from", str(tmp_path / "none.csv"))
    assert server.asked == []
