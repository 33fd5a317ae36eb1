"""What a server forgets, and what it never does."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some
from sqlalchemy import insert, select

from scanflow.agent.agent_records import Action, ActionState, Decision, Event, Guard, Verdict
from scanflow.processes.background_jobs import DELETED_PREFIX, Job
from scanflow_server.control.retention import (
    BATCH,
    DAY_S,
    EventBookmark,
    RetentionController,
    can_forget,
    compute_forget_limit,
    get_needed_until,
    should_bookmark,
)
from scanflow_server.server_context import ServerContext
from scanflow_server.server_settings import ServerSettings
from scanflow_server.store import application_store, event_store, intent_store, keys, label_store, run_store
from scanflow_server.store.intent_store import ActionRow, FieldRow
from scanflow_server.store.tables import keys as key_table
from tests.unit.server.arbiter.intent_builders import intent
from tests.unit.server.server_rows import ONLINE, Api, a_run, end_change, enter_run, make_request_row
from tests.waiting import PATIENCE_S

DATABASES = ["sqlite", "postgresql"]
NOW = 1_800_000_000.0
LONG_AGO = NOW - 40 * DAY_S
KEEP = ServerSettings(keep_events=0)


def with_settings(context: ServerContext, **changes: Any) -> RetentionController:
    context.settings = context.settings.model_copy(update=changes)
    return RetentionController(context)


def tell(context: ServerContext, count: int, at: float = NOW) -> None:
    with context.store.write() as connection:
        event_store.append(connection, [Event(at=at, type="sample", data={"n": n}) for n in range(count)])


def list_event_ids(context: ServerContext) -> list[int]:
    with context.store.read() as connection:
        return [event.id for event in event_store.list_after(connection, 0, limit=100_000)]


# -- decisions


@given(
    steps=some.lists(some.tuples(some.integers(0, 50), some.floats(0, 10 * DAY_S)), max_size=20),
    most=some.integers(0, 100),
)
def test_what_goes_is_too_old_or_too_much_and_the_newest_event_stays(steps: list[tuple[int, float]], most: int) -> None:
    keep = ServerSettings(keep_events=most)
    newest, now, until = 0, 0.0, 0
    marks: list[EventBookmark] = []
    born: dict[int, float] = {}
    for count, pause in steps:
        now += pause
        born |= dict.fromkeys(range(newest + 1, newest + count + 1), now)
        newest += count
        if should_bookmark(marks[-1] if marks else None, newest, now, keep):
            marks.append(EventBookmark(newest, now))
        until = max(until, compute_forget_limit(marks, newest, now, keep))
    assert 0 <= until < max(newest, 1)
    for number in range(1, until + 1):
        assert now - born[number] > 30 * DAY_S or (most and newest - number >= most)
    if most:
        assert newest - until <= max(most, 1)
    assert len(marks) <= len(steps)


def test_bookmarks_are_few_and_made_again_when_the_clock_is_set_back() -> None:
    assert should_bookmark(None, 1, NOW, KEEP)
    assert not should_bookmark(None, 0, NOW, KEEP)
    assert not should_bookmark(EventBookmark(5, NOW), 5, NOW + DAY_S, KEEP)
    assert not should_bookmark(EventBookmark(5, NOW), 6, NOW + 0.2 * DAY_S, KEEP)
    assert should_bookmark(EventBookmark(5, NOW), 6, NOW + 0.4 * DAY_S, KEEP)
    assert should_bookmark(EventBookmark(5, NOW), 6, NOW - DAY_S, KEEP)


def make_action_row(
    id: str = "i1", *, state: ActionState = "succeeded", verdict: Verdict = "act", at: float = LONG_AGO, **more: Any
) -> ActionRow:
    own = {name: more.pop(name) for name in ("guard_until", "reverting", "tries") if name in more}
    decision = Decision(intent=id, verdict=verdict, reason="", at=at)
    began = at if verdict == "act" and state != "pending" else None
    ended = None if state in {"pending", "running"} else at
    wanted = intent(id, **more)
    return ActionRow(
        action=Action(id=id, intent=wanted, state=state, decision=decision, began=began, ended=ended), **own
    )


@pytest.mark.parametrize(
    ("row", "goes"),
    [
        (make_action_row(), True),
        (make_action_row(at=NOW - DAY_S), False),
        (make_action_row(state="running"), False),
        (make_action_row(state="pending", verdict="approve"), False),
        (make_action_row(state="pending", verdict="queue"), False),
        (make_action_row(state="pending", verdict="suggest"), True),
        (make_action_row(state="lost", verdict="refuse"), True),
        (make_action_row(guard_until=NOW + 1), False),
        (make_action_row(reverting="ann"), False),
        (make_action_row(cool_down_s=60 * DAY_S), False),
        (make_action_row(hysteresis_s=60 * DAY_S), False),
        (make_action_row(budget=3, budget_window_s=60 * DAY_S), False),
        (make_action_row(budget_window_s=60 * DAY_S), True),  # without a budget it counts for nothing
        (make_action_row(budget=3, budget_window_s=60 * DAY_S, state="failed"), False),  # what failed was spent too
        (make_action_row(budget=3, budget_window_s=60 * DAY_S, state="lost", verdict="refuse"), True),
    ],
)
def test_an_action_is_forgotten_once_it_is_over_old_and_counts_for_nothing(row: ActionRow, goes: bool) -> None:
    assert can_forget(row, NOW, KEEP, surplus=False) is goes


def test_more_than_enough_is_forgotten_early_only_where_nothing_was_done() -> None:
    assert can_forget(make_action_row(at=NOW, state="lost", verdict="observe"), NOW + 1, KEEP, surplus=True)
    assert not can_forget(make_action_row(at=NOW), NOW + 1, KEEP, surplus=True)
    assert not can_forget(make_action_row(at=NOW, state="pending", verdict="approve"), NOW + 1, KEEP, surplus=True)
    assert get_needed_until(make_action_row(at=NOW, cool_down_s=5.0)) == NOW + 5


# -- events


def test_events_beyond_so_many_go_and_their_numbers_are_not_used_again(context: ServerContext) -> None:
    controller = with_settings(context, keep_events=10)
    tell(context, 2 * BATCH + 25)
    controller.forget()
    newest = 2 * BATCH + 25
    assert list_event_ids(context) == list(range(newest - 9, newest + 1))
    with_settings(context, keep_events=1).forget()
    tell(context, 1)
    assert list_event_ids(context) == [newest, newest + 1]


def test_events_go_by_when_they_were_listed_whatever_they_say_of_themselves(context: ServerContext) -> None:
    controller = with_settings(context, keep_events=0)
    now = [NOW]
    context.clock = lambda: now[0]
    tell(context, 5, at=NOW + 99 * DAY_S)
    controller.forget()
    now[0] += 20 * DAY_S
    tell(context, 5, at=1.0)
    controller.forget()
    assert len(list_event_ids(context)) == 10
    now[0] += 11 * DAY_S
    controller.forget()
    assert list_event_ids(context) == [6, 7, 8, 9, 10]


def test_nothing_goes_where_it_is_kept_for_ever(context: ServerContext) -> None:
    controller = with_settings(context, keep_events=0, keep_events_days=0.0, keep_ended_days=0.0, keep_keys_days=0.0)
    tell(context, 30, at=1.0)
    ended_operation(context, "op-1", LONG_AGO)
    now = [NOW]
    context.clock = lambda: now[0]
    for _ in range(3):
        controller.forget()
        now[0] += 900 * DAY_S
    assert len(list_event_ids(context)) == 30
    assert Job(context.settings.folder / "operations" / "op-1").result is not None


def test_who_asks_for_what_came_after_a_forgotten_event_learns_it(api: Api) -> None:
    tell(api.context, 20)
    assert "scanflow-events-gone" not in api.get("/events", params={"after": 0}).headers
    with_settings(api.context, keep_events=5).forget()
    answer = api.get("/events", params={"after": 3})
    assert [event["id"] for event in answer.json()] == [16, 17, 18, 19, 20]
    assert answer.headers["scanflow-events-gone"] == "15"
    for last_id in (15, 17, 20):
        assert "scanflow-events-gone" not in api.get("/events", params={"after": last_id}).headers
    headers = {"accept": "text/event-stream", "last-event-id": "3"}
    with api.stream("GET", "/events", params={"type": "nothing"}, headers=headers) as stream:
        lines = stream.iter_lines()
        head = [next(lines) for _ in range(3)]
    fields = dict(line.split(": ", 1) for line in head)
    assert (fields["event"], fields["id"]) == ("events.gone", "15")
    assert Event.model_validate_json(fields["data"]).data == {"after": 3, "until": 15}


# -- what was asked for


def ended_operation(context: ServerContext, id: str, at: float, state: str = "succeeded") -> Job:
    with context.store.write() as connection:
        intent_store.add(connection, make_request_row(id, service="s"))
    if state != "running":
        end_change(context.store, id, at=at, progress=("done",), record={})
    return ended_job(context.get_operation_job(id), at)


def ended_job(job: Job, at: float) -> Job:
    job.prepare({"what": "test"})
    assert job.end_without_process({"record": None})
    os.utime(job.path / "ended.json", (at, at))
    return job


def test_changes_that_ended_long_ago_are_forgotten_with_their_folders(context: ServerContext) -> None:
    old, fresh = ended_operation(context, "old", LONG_AGO), ended_operation(context, "fresh", NOW - DAY_S)
    going = ended_operation(context, "going", LONG_AGO, state="running")  # over, and not noted yet
    with context.store.write() as connection:
        intent_store.add(connection, make_action_row("i1", state="running", target="workflow/w").replace(tries=1))
    agents = [ended_job(context.get_operation_job(id, "0f.1"), LONG_AGO) for id in ("i1", "i2")]
    (context.settings.folder / "operations" / f"{DELETED_PREFIX}cut-short").mkdir()
    RetentionController(context).forget()
    with context.store.read() as connection:
        assert intent_store.find(connection, "old") is None
        assert intent_store.find(connection, "fresh") is not None
        assert [change.id for change in intent_store.list_open_changes(connection)] == ["going"]
    assert not old.path.exists()
    assert sorted(path.name for path in old.path.parent.iterdir()) == ["fresh", "going", agents[0].path.name]
    assert fresh.result is not None
    assert going.result is not None


def test_drives_that_ended_long_ago_are_forgotten_but_not_what_is_wanted_or_works(context: ServerContext) -> None:
    with context.store.write() as connection:
        for run in (a_run("over", active=False, drive=2), a_run("wanted"), a_run("fresh", active=False)):
            run_store.add(connection, run)
    jobs = {
        (name, drive): ended_job(context.get_run_job(name, drive), LONG_AGO)
        for name, drive in (("over", 1), ("over", 2), ("wanted", 1), ("unknown", 1))
    }
    ended_job(context.get_run_job("fresh", 1), NOW)
    unended = context.get_run_job("unended", 1)
    unended.prepare({"what": "test"})
    RetentionController(context).forget()
    assert {key for key, job in jobs.items() if job.path.exists()} == {("wanted", 1)}
    assert sorted(path.name for path in (context.settings.folder / "runs").iterdir()) == ["fresh", "unended", "wanted"]
    with context.store.read() as connection:
        row = run_store.find(connection, "over")
    assert row is not None, "no journal knows of it: it would not be known any more at all"


@pytest.mark.processes
def test_a_job_that_a_process_works_on_is_not_forgotten(context: ServerContext) -> None:
    job = ended_job(context.get_run_job("r", 1), LONG_AGO)
    assert job.daemon.start(["sleep", "600"], log=job.log)
    assert not job.forget()
    RetentionController(context).forget()
    job.daemon.kill()
    assert job.daemon.wait(PATIENCE_S)
    assert job.result is not None
    assert job.forget()
    assert not job.path.exists()


def test_a_run_with_a_forgotten_drive_is_still_reported_and_gone_on_with(api: Api, tmp_path: Path) -> None:
    from tests.server import load_body

    (tmp_path / "app.py").write_text(
        "import scanflow as sf\n@sf.step\ndef one() -> int:\n    return 1\n"
        "app = sf.Application(name='a', workflows=[sf.Workflow(name='w', nodes=[one.bind()])])\n"
    )
    name = api.post("/runs", json=load_body(tmp_path / "app.py")).json()["name"]
    api.context.deployer.batch.give_up(name, "for a test")
    with api.context.store.write() as connection:
        run_store.record_end(connection, name, 1, outcome="failed")
    ended_job(api.context.get_run_job(name, 1), LONG_AGO)
    api.context.settings = api.context.settings.model_copy(update={"keep_ended_days": 1.0})
    now = [NOW]
    api.context.clock = lambda: now[0]
    RetentionController(api.context).forget()
    with api.context.store.read() as connection:
        assert run_store.find(connection, name) is not None, "it was asked for a moment ago"
    kinds = [line.removeprefix("event: ") for line in read_run_events(api, name) if line.startswith("event: ")]
    assert (kinds[0], kinds[-1]) == ("run-started", "run-ended")
    now[0] += 2 * DAY_S
    RetentionController(api.context).forget()
    with api.context.store.read() as connection:
        assert run_store.find(connection, name) is None
    assert api.get(f"/runs/{name}").json()["state"] == "failed"
    assert [line for line in read_run_events(api, name) if line == "event: run-ended"]
    assert api.post(f"/runs/{name}/resume").json()["state"] == "running"


def read_run_events(api: Api, run: str) -> list[str]:
    with api.stream("GET", f"/runs/{run}/events") as stream:
        return list(stream.iter_lines())


# -- what agents wanted


def test_old_actions_are_forgotten_with_what_was_said_and_owners_open_ones_and_labels_stay(
    context: ServerContext,
) -> None:
    kinds = {
        "old": make_action_row("old"),
        "owner": make_action_row("owner"),
        "new": make_action_row("new", at=NOW - DAY_S),
        "waits": make_action_row("waits", state="pending", verdict="approve"),
        "spent": make_action_row("spent", budget=1, budget_window_s=90 * DAY_S),
        "guarded": make_action_row("guarded", guard=Guard(metric="service.s.errors"), guard_until=NOW + 5),
    }
    with context.store.write() as connection:
        for id, action in kinds.items():
            intent_store.add(connection, action)
            intent_store.append_trail(connection, id, LONG_AGO, "began")
        intent_store.put_field(connection, "service/s", FieldRow(field="replicas", intent="owner", strategy="x"))
        label_store.enqueue(connection, "a", [label_store.LabelCandidate(id="l1")], at=1.0)
    RetentionController(context).forget()
    with context.store.read() as connection:
        assert {id for id in kinds if intent_store.find(connection, id) is not None} == set(kinds) - {"old"}
        assert intent_store.load_trail(connection, "old") == []
        assert intent_store.load_trail(connection, "new") != []
        assert len(label_store.list_labels(connection)) == 1


def test_of_what_nothing_was_done_about_only_the_newest_are_kept(context: ServerContext) -> None:
    with context.store.write() as connection:
        intent_store.add(connection, make_action_row("first", at=NOW))
        for number in range(250):
            intent_store.add(connection, make_action_row(f"i{number}", state="lost", verdict="observe", at=NOW))
    with_settings(context, keep_events=20).forget()
    with context.store.read() as connection:
        ids = [action.id for action in intent_store.list_actions(connection, limit=1000)]
    assert ids == [f"i{number}" for number in reversed(range(230, 250))] + ["first"]


# -- keys


def test_old_keys_are_forgotten_except_of_what_was_begun_and_may_be_begun_again(context: ServerContext) -> None:
    with context.store.write() as connection:
        intent_store.add(connection, make_action_row("cut", state="running", tries=1))
        intent_store.add(connection, make_action_row("back", reverting="ann", tries=1))
        used = {
            "old": LONG_AGO,
            "new": NOW,
            "intent/cut": LONG_AGO,
            "intent/back/revert": LONG_AGO,
            "intent/x": LONG_AGO,
        }
        for key, at in used.items():
            keys.record(connection, key, "run", "mark", target="t", at=at)
        many = [{"key": f"k{n}", "kind": "run", "target": "t", "fingerprint": "f", "at": 1.0} for n in range(BATCH + 5)]
        connection.execute(insert(key_table), many)
    RetentionController(context).forget()
    with context.store.read() as connection:
        remaining_keys = set(connection.execute(select(key_table.c.key)).scalars())
    assert remaining_keys == {"new", "intent/cut", "intent/back/revert"}


# -- the controller


@pytest.mark.slow
def test_it_works_in_parts_at_its_times(context: ServerContext) -> None:
    now = [0.0]
    context.settings = context.settings.model_copy(update={"keep_events": 1})
    controller = RetentionController(context, clock=lambda: now[0])
    tell(context, 3 * BATCH)
    assert controller.tick() == 300
    assert len(list_event_ids(context)) == 3 * BATCH, "not at once"
    now[0] = 300
    counts: list[int] = []
    while len(counts) < 3:
        assert controller.tick() < 1
        counts.append(len(list_event_ids(context)))
        now[0] += 0.1
    assert counts == [2 * BATCH, BATCH, 1]
    while (pause_s := controller.tick()) < 1:
        now[0] += 0.1
    assert pause_s > 299


def test_a_pass_that_fails_is_started_again_later(context: ServerContext) -> None:
    now = [0.0]
    context.settings = context.settings.model_copy(update={"keep_events": 1})
    controller = RetentionController(context, clock=lambda: now[0])
    tell(context, 5)
    real = context.store
    context.store = None  # type: ignore[assignment]
    now[0] = 300
    with pytest.raises(AttributeError):
        controller.tick()
    context.store = real
    assert controller.tick() == 300
    now[0] = 600
    controller.tick()
    assert len(list_event_ids(context)) == 1


def test_the_settings_are_read_from_the_environment() -> None:
    settings = ServerSettings.from_environment({"SCANFLOW_KEEP_EVENTS": "5", "SCANFLOW_KEEP_ENDED_DAYS": "0.5"})
    assert (settings.keep_events, settings.keep_events_days, settings.keep_ended_days, settings.keep_keys_days) == (
        5,
        30,
        0.5,
        7,
    )


def test_functions_that_nothing_names_are_forgotten_once_they_are_old(context: ServerContext) -> None:
    batch, folder = context.deployer.batch, context.settings.home / "functions"
    files = {what: batch.keep_function(what.encode()) for what in ("run", "application", "wanted", "nobody", "new")}

    def document(what: str) -> dict[str, Any]:
        nodes = [{"name": "s", "kind": "executor", "function": f"{files[what]}:s"}]
        return {**ONLINE, "workflows": [{"name": "w", "nodes": nodes}]}

    enter_run(context, workflow="w", definition=json.dumps(document("run")))
    with context.store.write() as connection:
        application_store.put(connection, name="a", team="t", document=document("application"), source=None, at=NOW)
        run_store.add(connection, a_run("wanted", definition=document("wanted")))
    for what, name in files.items():
        at = NOW if what == "new" else LONG_AGO
        os.utime(folder / name, (at, at))
    with_settings(context, keep_ended_days=0).forget()
    assert len(list(folder.iterdir())) == 5
    with_settings(context, keep_ended_days=30).forget()
    assert {name for name in files.values() if not (folder / name).exists()} == {files["nobody"]}
    assert batch.forget_functions(NOW + 1) == 3, "what no run names"
