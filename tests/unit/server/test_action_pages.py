"""The pages of actions: what waits, why something was done, and who may decide."""

from __future__ import annotations

from typing import Any

import pytest

from scanflow.agent.agent_records import JSON, Decision, PrimitiveCall, Sample
from scanflow.backends.service_records import Shape
from scanflow.reports.model_history import read_slices
from scanflow_server.arbiter.arbitration import ALLOWED
from scanflow_server.arbiter.why import explain_action
from scanflow_server.dashboard.action_pages import build_chain, build_slice_table
from scanflow_server.dashboard.overview_page import build_action_table, select_agents_actions
from scanflow_server.dashboard.page_cells import LinkCell
from scanflow_server.dashboard.subject_links import find_address, list_links
from scanflow_server.server_context import ServerContext
from scanflow_server.store import intent_store, run_store
from tests.page_reader import PageReader
from tests.unit.server.answering import a_service
from tests.unit.server.arbiter.intent_builders import action, intent
from tests.unit.server.page_browser import browsing
from tests.unit.server.server_rows import Api, a_run, make_action_row, read_from_store

EVIDENCE: dict[str, JSON] = {
    "verdict": "promote",
    "reason": "better",
    "version": 2,
    "champion": 1,
    "n": 250,
    "run": "fox-1",
    "traffic": {"current": 0.9, "clean": 0.1},
    "slices": [
        {"name": name, "n": n, "champion_right": old, "challenger_right": new, "gain": 0.07, "low": 0.03, "high": 0.1}
        for name, n, old, new in (("current", 250, 196, 214), ("<i>clean</i>", 0, 0, 0))
    ],
}


def add_action(context: ServerContext, id: str, state: str = "pending", verdict: str = "approve", **more: Any) -> None:
    with context.store.write() as connection:
        intent_store.add(connection, make_action_row(id, state, verdict, **more))


def test_a_chain_leads_from_the_sample_to_the_effect() -> None:
    sample = Sample(
        id="s1",
        agent="planner",
        sensor="counts",
        at=1.0,
        value={"evidence": EVIDENCE},
        cause="call:tracker/count/event:142",
    )
    arguments = {"model": "models:/cnn/2", "service": "serve"}
    wanted = intent("a1", sample=sample, arguments=arguments, strategy="change_model")
    undo = PrimitiveCall(primitive="upgrade_workflow", arguments={"model": "models:/cnn/1"})
    done = action(wanted, began=1.0, inverse=undo, result={"run": "owl-2", "service": "serve"})
    names = ("sample", "trigger", "evidence", "rule", "intent", "decision", "action", "effect")
    lines = [line for name in names for line in (f"{name:10}of {name}", "          and more")]
    chain = {link.name: link for link in build_chain(done, lines)}
    assert tuple(chain) == names
    assert chain["rule"].lines == ["of rule", "and more"]
    assert {name: [link.address for link in part.links] for name, part in chain.items()} == {
        "sample": ["/events?app=mnist&text=s1", "/agents/mnist/planner"],
        "trigger": ["/agents/mnist/planner#sensors", "/agents/mnist/tracker", "/events/142"],
        "evidence": ["/runs/fox-1"],
        "rule": ["/agents/mnist/planner#strategies"],
        "intent": ["/services/serve", "/models/cnn#v2"],
        "decision": ["/events?app=mnist&text=a1"],
        "action": [],
        "effect": ["/runs/owl-2", "/services/serve", "/models/cnn#v1"],
    }


def test_slices_with_points_are_a_table_and_other_evidence_has_none() -> None:
    table = build_slice_table(read_slices(EVIDENCE), 1, 2)
    assert table.columns == ("slice", "points", "version 1", "version 2", "gain", "interval", "traffic")
    assert table.rows == [["current", "250", "78.4 %", "85.6 %", "+7.2 points", "+3.0 to +10.0", "90 %"]]
    others: tuple[dict[str, Any], ...] = (
        {},
        {"reason": "mine"},
        {**EVIDENCE, "slices": [{"name": 1}]},
        {**EVIDENCE, "slices": 1},
        {**EVIDENCE, "traffic": "much"},
    )
    assert [read_slices(other) for other in others] == [()] * 5


def test_the_table_says_what_an_action_changes_and_why_it_was_wanted() -> None:
    back = PrimitiveCall(primitive="update_workflow_replica", arguments={"workflow": "serve", "instances": 1})
    other = PrimitiveCall(primitive="rollback", arguments={"instances": 7})
    asked = {"service": "serve", "model": "models:/cnn/2", "weight": None, "password": "hunter2", "reason": "the audit"}
    allowed = Decision(intent="i1", verdict="act", reason=ALLOWED, at=1.0)
    rows = build_action_table(
        [
            action(intent(rule="waiting > 3"), began=1.0, inverse=back, decision=allowed),
            action(intent(), began=1.0, inverse=other),
            action(intent(arguments=back.arguments), began=1.0, inverse=back),
            action(intent(source="person", arguments=asked), began=1.0, decision=allowed),
            action(intent(arguments={"app": "mnist", "team": "data", "workflow": "training"}), began=1.0),
        ]
    ).rows
    assert [(row[2], row[4]) for row in rows] == [
        ("instances 1 → 2", "waiting > 3"),
        ("instances 2", "It was so."),
        (None, "It was so."),
        ("model models:/cnn/2, password ***", "the audit"),
        (None, "It was so."),
    ]


def test_a_failed_action_says_why_it_failed_in_the_table_and_as_its_effect() -> None:
    allowed = Decision(intent="i1", verdict="act", reason=ALLOWED, at=1.0)
    failed = action(intent(rule="waiting > 3"), began=1.0, state="failed", error="No CPU is free.", decision=allowed)
    assert build_action_table([failed]).rows[0][4] == "No CPU is free."
    *_, effect = build_chain(failed, explain_action(failed, []))
    assert (effect.name, list(effect.lines)) == ("effect", ["failed: No CPU is free."])
    unknown = action(intent(), began=1.0, state="failed", decision=allowed)
    assert explain_action(unknown, [])[-1] == "effect    failed: no error was recorded"


@pytest.mark.parametrize(
    ("subject", "address"),
    [
        ("workflow/a b", "/runs?app=shop&workflow=a+b"),
        ("service/s", "/services/s"),
        ("run/fox-1", "/runs/fox-1"),
        ("model/m?", "/models/m%3F"),
        ("agent/planner", "/agents/shop/planner"),
        ("labels/x", None),
        ("model/", None),
        ("", None),
    ],
)
def test_a_subject_has_the_page_of_its_kind(subject: str, address: str | None) -> None:
    assert find_address(subject, "shop") == address


def test_data_link_to_what_they_name_once() -> None:
    data = {"run": "fox", "models": {"a": "models:/m/1", "b": "models:/m/1"}, "service": 3, "action": "a/1", "x": "run"}
    links = [
        LinkCell("run fox", "/runs/fox"),
        LinkCell("m 1", "/models/m#v1"),
        LinkCell("action a/1", "/actions/a%2F1"),
    ]
    assert list_links("shop", data, None, [data]) == links


def test_a_list_of_nothing_says_whether_a_filter_is_why(api: Api) -> None:
    api.post("/events", json=[{"at": 1.0, "type": "run.failed", "app": "shop"}]).raise_for_status()
    with browsing(api, team="beta") as eve:
        for page, nothing in (("/runs", "No run"), ("/actions", "No action"), ("/events", "No event")):
            assert f"{nothing} yet." in eve.get(page)
            assert "The filter lets nothing through." in eve.get(f"{page}?app=other")


def test_what_waits_comes_first_and_an_editor_decides_with_a_reason(api: Api, context: ServerContext) -> None:
    add_action(context, "a1", agent="<executor>")
    for n in range(60):
        add_action(context, f"n{n}", "observed", "observe")
    with browsing(api) as ada:
        page = ada.get("/actions")
        assert page.index("Waiting for approval") < page.index('href="/actions/a1"') < page.index("All actions")
        assert "&lt;executor&gt;" in page
        form = next(form for form in PageReader(page).forms if form.action == "/actions/a1/approve")
        assert ("reason" in form.fields, 'formaction="/actions/a1/refuse"' in page) == (True, True)
        assert "Older" in page
        assert page.count("<tr>") == 51
        assert "Older" not in ada.get("/actions?start=50")
        assert "Waiting for approval" not in ada.get("/actions?state=observed")
        for nothing in ("?app=other", "?state=failed", "?agent=other&state=pending"):
            assert "The filter lets nothing through." in ada.get(f"/actions{nothing}"), nothing
        assert "There is nothing older." in ada.get("/actions?start=500")
        unknown = ada.client.get("/actions?state=bogus")
        assert (unknown.status_code, "There is no state &#39;bogus&#39; to filter by" in unknown.text) == (422, True)
        refused = ada.post("/actions/a1/refuse", reason=" not <now> ")
        assert (refused.status_code, refused.url.path) == (200, "/actions/a1")
        assert "ada refused it: not &lt;now&gt;" in refused.text
        stored = read_from_store(context.store, intent_store.find, "a1").action
        assert (stored.state, stored.decision.by) == ("refused", "ada")
        assert ada.post("/actions/a1/revert").status_code == 400, "it never took effect"
        assert ada.post("/actions/a1/approve", reason="x" * 1001).status_code == 422
        assert ada.post("/actions/a1/approve", reason="yes", session_key="").status_code == 403
        assert read_from_store(context.store, intent_store.find, "a1").action.approved_by is None
        ada.post("/actions/a1/approve", reason="yes")
    approved = read_from_store(context.store, intent_store.find, "a1").action
    assert (approved.approved_by, approved.approved_why) == ("ada", "yes")


def test_what_waits_says_what_it_would_change_and_what_was_measured(
    api: Api, context: ServerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = a_service("digits", "ready").model_copy(update={"shape": Shape(instances=2)})
    monkeypatch.setattr(context.deployer, "services", lambda **_: [service])
    arguments: dict[str, JSON] = {"workflow": "digits", "instances": 3}
    add_action(context, "a1", target="service/digits", arguments=arguments, rule="slow: p95 > most, p95=0.28, most=0.1")
    with browsing(api) as ada:
        for path in ("/", "/actions"):
            assert "instances 2 → 3; rule: slow: p95 &gt; most, p95=0.28, most=0.1; So it was." in ada.get(path)
        service = service.model_copy(update={"shape": Shape(instances=3)})
        assert "nothing to change, as it has instances 3 already; rule: slow" in ada.get("/")


def test_an_action_that_started_a_run_says_how_the_run_is_now(api: Api, context: ServerContext) -> None:
    runs = [f"bold-fox-00{number}" for number in range(5)]
    undo = PrimitiveCall(primitive="stop_workflow", arguments={})
    with context.store.write() as connection:
        for run in runs:
            run_store.add(connection, a_run(run))
        for run in runs[1:]:
            run_store.record_end(connection, run, 1, outcome="stopped")
        for run in [*runs, "gone-1"]:
            row = make_action_row(f"of-{run}", "succeeded", "act", target="workflow/detector", at=context.clock())
            result: JSON = {"run": run, "workflow": "detector", "state": "running"}
            intent_store.add(connection, row.replace(action={"inverse": undo, "result": result}))
    with browsing(api) as ada:
        for path in ("/actions?agent=planner", "/"):
            page = " ".join(ada.get(path).split())
            assert f'started</span> <a href="/runs/{runs[1]}">{runs[1]}: stopped</a>' in page, path
            assert f'started</span> <a href="/runs/{runs[0]}">{runs[0]}: running</a>' in page, path
            assert ("gone-1: unknown" in page, "succeeded</span>" in page) == (True, False)
        assert "gone-1: unknown" in ada.get("/actions/of-gone-1")
        page = ada.get(f"/actions/of-{runs[4]}")
        assert f"{runs[4]}: stopped</a>" in page
        assert f"started the run {runs[4]}, which is stopped now; inverse: stop_workflow" in page


def test_buttons_are_of_what_may_be_done(api: Api, context: ServerContext) -> None:
    for id, state, verdict in (
        ("waits", "pending", "approve"),
        ("queued", "pending", "queue"),
        ("runs", "running", "act"),
        ("refused", "refused", "refuse"),
        ("done", "succeeded", "act"),
    ):
        add_action(context, id, state, verdict)
    with context.store.write() as connection:
        row = make_action_row("undone", "succeeded", "act")
        undo = PrimitiveCall(primitive="update_workflow_replica", arguments={})
        intent_store.add(connection, row.replace(action={"inverse": undo}))
    with browsing(api) as ada, browsing(api, "vic", "viewer") as vic:
        for id, names in (
            ("waits", ["approve", "refuse"]),
            ("queued", ["refuse"]),
            ("runs", []),
            ("refused", ["approve"]),
            ("done", []),
            ("undone", ["revert"]),
        ):
            page = ada.read(f"/actions/{id}")
            buttons = [str(attributes.get("formaction")) for tag, attributes in page.tags if tag == "button"]
            assert [name for name in buttons if name != "None"] == [f"/actions/{id}/{name}" for name in names], id
            assert [form.action for form in vic.read(f"/actions/{id}").forms] == ["/logout"], "a viewer sees none"
        listed = vic.get("/actions")
        assert ("waits for somebody who may approve it" in listed, "scanflow approve" in listed) == (True, False)
        assert vic.post("/actions/waits/approve").status_code == 403
        assert vic.post("/actions/waits/refuse").status_code == 403
    assert read_from_store(context.store, intent_store.find, "waits").action.state == "pending"


def test_what_agents_did_today_is_nothing_that_a_person_did() -> None:
    rows = [
        make_action_row("waits", "pending", "approve", at=100.0),
        make_action_row("refused", at=90.0),
        make_action_row("yesterday", at=4.0),
        make_action_row("person", "succeeded", "act", at=100.0, source="person"),
        make_action_row("late", "succeeded", "act", at=4.0).replace(action={"began": 80.0}),
    ]
    chosen = select_agents_actions([row.action for row in rows], since=80.0)
    assert [action.id for action in chosen] == ["waits", "refused", "late"]


def test_another_teams_action_looks_missing(api: Api, context: ServerContext) -> None:
    add_action(context, "a1", team="alpha")
    with browsing(api, team="beta") as eve:
        for path in ("/", "/actions", "/actions?team=alpha"):
            assert "/actions/a1" not in eve.get(path)
        for path in ("/actions/a1", "/actions/none"):
            missing = eve.client.get(path)
            assert (missing.status_code, "There is no action" in missing.text) == (404, True)
            PageReader(missing.text)
        assert eve.post("/actions/a1/approve").status_code == 404
    with browsing(api, "al", team="alpha") as al:
        assert 'href="/actions/a1"' in al.get("/actions")


def test_a_secret_is_masked_wherever_an_action_is_shown(api: Api, context: ServerContext) -> None:
    sample = Sample(id="s1", agent="planner", sensor="counts", at=1.0, value={"api_key": "tops3cret"}, cause="call")
    add_action(context, "a1", "failed", "act", arguments={"password": "tops3cret"}, sample=sample, rule="x=tops3cret")
    with browsing(api) as ada:
        for path in ("/actions", "/actions/a1"):
            assert "tops3cret" not in ada.get(path)
