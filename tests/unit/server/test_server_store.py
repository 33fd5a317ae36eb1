"""The store, on SQLite and on PostgreSQL alike."""

from __future__ import annotations

import re
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import JSON, Column, Connection, Float, Integer, MetaData, String, Table, inspect, text, update
from sqlalchemy.event import listen
from sqlalchemy.exc import DBAPIError

from scanflow.agent.agent_records import Event
from scanflow.errors import InvalidError, UnavailableError, UsageError
from scanflow_server.intent_identity import get_place
from scanflow_server.store import (
    agent_store,
    application_store,
    event_store,
    intent_store,
    keys,
    label_store,
    migrations,
    run_store,
    token_store,
)
from scanflow_server.store.base import SLICE_S, Store, open_store, translate_errors
from scanflow_server.store.migrations import migrate
from scanflow_server.store.run_store import DriveRequest
from scanflow_server.store.tables import metadata, runs
from tests.unit.server.server_rows import a_run, end_change, make_action_row, make_request_row, read_from_store
from tests.waiting import PATIENCE_S

DATABASES = ["sqlite", "postgresql"]
STEP_0011 = Path(__file__).parents[2] / "golden" / "tables-0011.sql"


def an_event(number: int = 0, type: str = "sample", app: str = "mnist") -> Event:
    return Event(at=1.0, type=type, app=app, subject="agent/tracker", data={"number": number})


def test_the_steps_lead_to_the_tables_that_the_code_uses(store: Store) -> None:
    with store.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": False})
        assert compare_metadata(context, metadata) == []


def test_a_database_of_step_0011_is_led_to_the_tables_that_the_code_uses(tmp_path: Path) -> None:
    """A new database takes no step, so a step that a change of the tables lacks is missed here alone."""
    file = tmp_path / "server.db"
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript(STEP_0011.read_text(encoding="utf-8"))
        connection.executescript(
            "CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY);"
            "INSERT INTO alembic_version VALUES ('0011');"
        )
    with closing(open_store(f"sqlite:///{file}")) as store:
        migrate(store)
        test_the_steps_lead_to_the_tables_that_the_code_uses(store)


def test_a_database_that_is_there_already_is_left_as_it_is_also_where_it_is_newer(store: Store) -> None:
    with store.write() as connection:
        event_store.append(connection, [an_event()])
    migrate(store)
    with store.write() as connection:
        assert [event.id for event in event_store.list_after(connection, 0)] == [1]
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(UsageError, match="migrated by a newer scanflow"):
        migrate(store)


def make_operations_table(connection: Connection, *more: Column[Any]) -> Table:
    """Make the table of operations, as of step 0009 or a later one, beside intents without what it had."""
    connection.execute(text("DROP TABLE sessions"))
    for name in ("request", "progress", "drivers", "record", "problem"):
        connection.execute(text(f"ALTER TABLE intents DROP COLUMN {name}"))
    required: dict[str, Any] = {
        "id": String(128),
        "kind": String(32),
        "service": String(128),
        "app": String(128),
        "request": JSON(),
    }
    required |= {"created": Float(), "state": String(32)}
    optional: dict[str, Any] = {"ended": Float(), "progress": JSON(), "result": JSON(), "problem": JSON()}
    columns = [*(Column(name, type, nullable=False) for name, type in required.items()), *more]
    columns += [Column(name, type) for name, type in optional.items()]
    table = Table("operations", MetaData(), Column("number", Integer, primary_key=True), *columns)
    table.create(connection)
    return table


def an_operation(id: str, **values: Any) -> dict[str, Any]:
    request = {"application": {"name": "mnist"}, "source": None, "port": 8080}
    fields = {"id": id, "kind": "deploy", "service": "letters", "app": "mnist", "request": request, "created": 1.0}
    return {**fields, "state": "succeeded", "ended": 2.0, "progress": ["ready"], **values}


def test_the_operations_of_the_release_before_are_actions(store: Store) -> None:
    problem, record = {"status": 400, "detail": "no room"}, {"name": "digits"}
    with store.write() as connection:
        for id in ("deploy-0", "change-1"):
            state = "succeeded" if id == "deploy-0" else "running"
            intent_store.add(connection, make_request_row(id, "deploy", state=state, team="vision"))
        operations = make_operations_table(connection, Column("team", String(128), nullable=False))
        began: dict[str, Any] = {"state": "running", "ended": None, "progress": None}
        for row in (
            an_operation("deploy-0", team="vision", service="digits", result=record),
            an_operation("change-1", team="vision", service="digits", **began),
            an_operation("change-2", team="vision", kind="change", state="failed", problem=problem),
            an_operation("change-3", team="", kind="change", **began),
        ):
            connection.execute(operations.insert().values(row))
        connection.execute(text("UPDATE alembic_version SET version_num = '0016'"))
    migrate(store)
    test_the_steps_lead_to_the_tables_that_the_code_uses(store)
    done, going, failed, early = (read_from_store(store, intent_store.get, id) for id in IDS)
    assert (done.record, done.progress, done.drivers, done.action.state) == (record, ("ready",), (IDS[0],), "succeeded")
    assert (going.request, going.drivers, going.action.state) == (an_operation("")["request"], (), "running")
    assert (failed.problem, failed.action.error, failed.action.state) == (problem, "no room", "failed")
    assert (failed.intent.arguments, failed.intent.target) == ({"service": "letters", "port": 8080}, "service/letters")
    assert (early.intent.team, early.action.state, early.intent.primitive) == ("", "running", "change")
    with store.read() as connection:
        assert [row.id for row in intent_store.list_open_changes(connection)] == ["change-1", "change-3"]
        assert [row.id for row in intent_store.list_due(connection)] == ["change-1", "change-3"]


IDS = ("deploy-0", "change-1", "change-2", "change-3")


def as_before_teams(connection: Connection) -> Table:
    """Make of a new database one of step 0009, and return its table of operations."""
    for index in ("events_team", "events_app_type_id", "events_team_type_id", "labels_id", "tokens_person"):
        connection.execute(text(f"DROP INDEX ix_{index}"))
    added = {
        "tokens": ("role", "team", "expires", "person"),
        "events": ("team",),
        "agents": ("sensors", "token_salt", "token_hash", "strategies", "reported"),
    }
    connection.execute(text("DROP TABLE strategies"))
    connection.execute(text("DROP TABLE audit"))
    connection.execute(text("DROP TABLE stored_bytes"))
    for table, names in added.items():
        for name in names:
            connection.execute(text(f"ALTER TABLE {table} DROP COLUMN {name}"))
    return make_operations_table(connection)


def test_a_database_of_the_release_before_lets_tokens_do_what_they_could_and_knows_the_owners(store: Store) -> None:
    mine = make_action_row("deploy-0", target="service/digits", team="vision")
    with store.write() as connection:
        for name, team in (("mnist", "vision"), ("both", "vision"), ("both", "speech")):
            application_store.put(connection, name=name, team=team, document={}, source=None, at=1.0)
        event_store.append(connection, [an_event(app="mnist"), an_event(app="both")])
        intent_store.add(connection, mine)
        intent_store.put_field(connection, get_place(mine.intent), intent_store.FieldRow(field="model", intent=mine.id))
        for table in ("intents", "fields"):
            connection.execute(text(f"UPDATE {table} SET place = 'service/digits'"))
        token_store.add(
            connection, token_store.TokenRow(name="ada", role="viewer", team="vision", created=1.0), "0" * 64
        )
        operations = as_before_teams(connection)
        for id, app in (("deploy-0", "both"), ("deploy-1", "mnist"), ("deploy-2", "both")):
            connection.execute(operations.insert().values(an_operation(id, app=app)))
        connection.execute(text("UPDATE alembic_version SET version_num = '0009'"))
    migrate(store)
    test_the_steps_lead_to_the_tables_that_the_code_uses(store)
    with store.read() as connection:
        (ada,) = token_store.list_all(connection)
        assert (ada.role, ada.team, ada.expires) == ("admin", None, None)
        assert [event.app for event in event_store.list_after(connection, 0, team="vision")] == ["mnist"]
        teams = [
            operation.intent.team
            for id in range(3)
            if (operation := intent_store.find(connection, f"deploy-{id}")) is not None
        ]
        assert teams == ["vision", "vision", ""]
        place = get_place(mine.intent)
        assert (place, list(intent_store.load_fields(connection, place))) == ("service/vision/digits", ["model"])
        assert [
            action.id
            for action in intent_store.list_actions(connection, app="mnist", team="vision", target="service/digits")
        ] == ["deploy-0"]


def test_a_database_of_the_release_before_keeps_its_labels_as_votes(store: Store) -> None:
    with store.write() as connection:
        label_store.enqueue(connection, "mnist", [label_store.LabelCandidate(id=id) for id in "ab"], at=1.0)
        label_store.Labeller("ada").assign(connection, "a", [7], at=2.0)
        for table in ("label_votes", "notified"):
            connection.execute(text(f"DROP TABLE {table}"))
        for column in ("purpose", "disputed", "row", "picture"):
            connection.execute(text(f'ALTER TABLE labels DROP COLUMN "{column}"'))
        as_before_teams(connection)
        connection.execute(text("UPDATE alembic_version SET version_num = '0007'"))
    migrate(store)
    test_the_steps_lead_to_the_tables_that_the_code_uses(store)
    with store.read() as connection:
        a, b = label_store.list_labels(connection, details=True)
    assert (a.label, a.purpose, a.disputed, a.votes) == (
        [7],
        "train",
        False,
        [label_store.Vote(by="ada", label=[7], at=2.0)],
    )
    assert (b.state, b.votes) == ("wanted", [])


def test_servers_that_start_at_once_change_the_database_once(database: str) -> None:
    together = threading.Barrier(4)

    def start(_: int) -> None:
        store = open_store(database)
        together.wait(timeout=PATIENCE_S)
        migrate(store)
        store.close()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(start, range(4), timeout=PATIENCE_S))
    store = open_store(database)
    head = ScriptDirectory(str(Path(migrations.__file__).parent)).get_current_head()
    with store.read() as connection:
        assert connection.execute(text("SELECT version_num FROM alembic_version")).scalars().all() == [head]
    assert "runs" in inspect(store.engine).get_table_names()
    store.close()


def test_what_fails_in_the_middle_is_as_if_it_had_not_begun(store: Store) -> None:
    def cut_short() -> None:
        with store.write() as connection:
            run_store.add(connection, a_run("calm-otter-417", definition={"x": [1]}))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        cut_short()
    with store.read() as connection:
        assert run_store.find(connection, "calm-otter-417") is None


def test_whoever_writes_tells_so_once_it_can_be_seen(database: str) -> None:
    seen: list[int] = []
    store = open_store(database, on_change=lambda: seen.append(count()))
    migrate(store)

    def count() -> int:
        with store.read() as connection:
            return event_store.get_newest_id(connection)

    def cut_short() -> None:
        with store.write() as connection:
            event_store.append(connection, [an_event()])
            raise ZeroDivisionError

    with store.write() as connection:
        event_store.append(connection, [an_event(), an_event()])
    assert seen == [2]
    with pytest.raises(ZeroDivisionError):
        cut_short()
    with store.write() as connection:
        run_store.stop(connection, "gone-fox-001")
    assert seen == [2], "nothing was changed"
    with store.write() as connection:
        run_store.add(connection, a_run("calm-otter-417"))
        run_store.stop(connection, "calm-otter-417")
        run_store.stop(connection, "gone-fox-001")
    assert seen == [2, 2]
    with store.write() as connection:
        connection.execute(update(runs).values(stop=False).returning(runs.c.name)).scalar_one()
    assert seen == [2, 2, 2], "with SQLite, a statement that returns rows has changed none until these are fetched"
    store.close()


def test_writers_come_one_after_the_other(store: Store) -> None:
    with store.write() as connection:
        application_store.put(connection, name="a", team="t", document={"n": 0}, source=None, at=0.0)

    def count_on(_: int) -> None:
        for _ in range(10):
            with store.write() as connection:
                row = application_store.find(connection, "a")
                assert row is not None
                more = {"n": row.document["n"] + 1}
                application_store.put(connection, name="a", team="t", document=more, source=None, at=0.0)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(count_on, range(4), timeout=PATIENCE_S))
    row = read_from_store(store, application_store.find, "a")
    assert (row.document, row.revision) == ({"n": 40}, 41)


def test_events_are_seen_in_the_order_of_their_numbers(store: Store) -> None:
    over = threading.Event()
    seen: list[int] = []

    def look() -> None:
        while True:
            last = over.is_set()
            with store.read() as connection:
                seen.extend(event.id for event in event_store.list_after(connection, seen[-1] if seen else 0))
            if last and len(seen) == 60:
                return

    def tell(writer: int) -> None:
        for number in range(15):
            with store.write() as connection:
                event_store.append(connection, [an_event(100 * writer + number)])

    with ThreadPoolExecutor(5) as pool:
        looking = pool.submit(look)
        list(pool.map(tell, range(4), timeout=PATIENCE_S))
        over.set()
        looking.result(timeout=PATIENCE_S)
    assert seen == sorted(set(seen))
    assert len(seen) == 60


def test_events_are_found_by_number_type_and_application(store: Store) -> None:
    with store.write() as connection:
        listed = event_store.append(
            connection,
            [an_event(1, "run.started"), an_event(2, "run.failed"), an_event(3, "run_started"), an_event(4, "sample")],
        )
    assert [event.id for event in listed] == [1, 2, 3, 4]
    with store.read() as connection:
        assert event_store.list_after(connection, 2) == listed[2:]
        assert event_store.list_after(connection, 0, limit=1) == listed[:1]
        assert event_store.list_after(connection, 0, type="run.failed") == listed[1:2]
        assert event_store.list_after(connection, 0, type="run.*") == listed[:2]
        assert event_store.list_after(connection, 0, type="*") == listed
        assert event_store.list_after(connection, 0, app="other") == []


@pytest.mark.parametrize(("near", "max_types"), [(0, 200), (0, 0), (5_000, 200)], ids=["by index", "whole", "near"])
def test_events_are_found_alike_however_they_are_looked_for(
    store: Store, monkeypatch: pytest.MonkeyPatch, near: int, max_types: int
) -> None:
    monkeypatch.setattr(event_store, "NEAR", near)
    monkeypatch.setattr(event_store, "MAX_TYPES", max_types)
    types, apps, teams = ("run.started", "run.failed", "run_started", "sample"), ("a", "b", ""), ("red", "blue")
    with store.write() as connection:
        listed = [
            (team, event)
            for number, (type, app, team) in enumerate(product(types, apps, teams))
            for event in event_store.append(connection, [an_event(number, type, app)], team=team)
        ]
    asked = [(), ("sample",), ("run.*", "sample"), ("*",), ("none*",)]
    with store.read() as connection:
        for after, some, app, team in product((0, 7, 99), asked, (None, *apps, "none"), (None, *teams)):
            matching = [
                event
                for whose, event in listed
                if event.id > after
                and app in {None, event.app}
                and team in {None, whose}
                and (not some or any(fnmatchcase(event.type, type) for type in some))
            ]
            for limit in (3, 100):
                page = event_store.list_after(connection, after, type=some, app=app, team=team, limit=limit)
                assert page == matching[:limit], (after, some, app, team)
        assert [entry.id for entry in event_store.list_newest(connection, type=("run.*",), app="a", limit=2)] == [7, 8]
        assert event_store.list_apps(connection, type=("sample",)) == ["a", "b"]
        assert event_store.list_apps(connection, type=("none",)) == []


def test_no_list_of_events_reads_or_sorts_all_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_store, "NEAR", 0)
    plans = list[str]()
    with closing(open_store(f"sqlite:///{tmp_path / 'store.db'}")) as store:
        migrate(store)
        with store.write() as connection:
            event_store.append(connection, [an_event(number) for number in range(3)], team="red")
        with store.read() as connection:
            database = connection.connection.driver_connection

            def explain(_connection: object, _cursor: object, statement: str, values: object, *_: object) -> None:
                assert database is not None
                plans.extend(str(row[3]) for row in database.execute(f"EXPLAIN QUERY PLAN {statement}", values))

            connection.execute(text("SELECT 1"))
            listen(store.engine, "before_cursor_execute", explain)
            for types, app, team in product(((), ("sample",), ("sa*", "b*")), (None, "mnist"), (None, "red")):
                event_store.list_after(connection, 1, type=types, app=app, team=team)
            event_store.list_newest(connection, type=("sample",), app="mnist", limit=5)
            event_store.list_apps(connection, type=("sample",))
            event_store.get_newest_id(connection, team="red")
    looks = [plan for plan in plans if re.search(r"\bevents\b", plan)]
    assert len(looks) > 20
    # By the number alone only a list without any filter is read, which ends at its limit.
    bad = [plan for plan in looks if plan.startswith("SCAN") or plan.endswith("INTEGER PRIMARY KEY (rowid>?)")]
    assert len(bad) == 1, bad


def test_a_key_stands_for_one_request(store: Store) -> None:
    mark = keys.compute_fingerprint({"a": 1, "b": 2})
    assert mark == keys.compute_fingerprint({"b": 2, "a": 1})
    with store.write() as connection:
        assert keys.find(connection, "k", "run", mark) is None
        keys.record(connection, "k", "run", mark, target="calm-otter-417", at=1.0)
        keys.record(connection, None, "run", mark, target="nothing", at=1.0)
        assert keys.find(connection, "k", "run", mark) == "calm-otter-417"
        assert keys.find(connection, None, "run", mark) is None
        with pytest.raises(InvalidError, match="'k' was used for another request"):
            keys.find(connection, "k", "run", keys.compute_fingerprint({"a": 2}))


def test_a_run_is_active_until_its_newest_drive_has_ended(store: Store) -> None:
    with store.write() as connection:
        run_store.add(connection, a_run("calm-otter-417", definition={"x": [1]}))
        run_store.add(connection, a_run("bold-fox-001"))
        assert [run.name for run in run_store.list_active(connection)] == ["bold-fox-001", "calm-otter-417"]
        assert run_store.record_end(connection, "calm-otter-417", 1, outcome="failed", problem={"status": 424})
        assert not run_store.record_end(connection, "calm-otter-417", 1, outcome="failed")
        assert run_store.count_active(connection) == 1
        run_store.drive_again(connection, "calm-otter-417", DriveRequest(action="resume"))
        run_store.stop(connection, "calm-otter-417")
        assert not run_store.record_end(connection, "calm-otter-417", 1, outcome="succeeded")
    row = read_from_store(store, run_store.find, "calm-otter-417")
    assert (row.drive, row.active, row.stop, row.outcome, row.problem) == (2, True, True, None, None)
    assert row.definition == {"x": [1]}
    assert row.asked.action == "resume"


def test_changes_of_services_are_kept_in_the_order_they_were_requested(store: Store) -> None:
    with store.write() as connection:
        for id in ("scale-2", "scale-1", "scale-3"):
            intent_store.add(connection, make_request_row(id, state="pending", request={"instances": 2}))
        intent_store.add(connection, make_action_row("i1", "running", "act", target="service/digits"))
        intent_store.add(connection, make_action_row("i2", "pending", "queue", target="service/digits"))
        intent_store.add(connection, make_action_row("i3", "running", "act", target="workflow/digits"))
    end_change(store, "scale-1", progress=("a",), record={"name": "s"})
    with store.read() as connection:
        opened = intent_store.list_open_changes(connection)
        ended = intent_store.find(connection, "scale-1")
    assert [(operation.id, operation.request) for operation in opened[:2]] == [
        (f"scale-{n}", {"instances": 2}) for n in (2, 3)
    ]
    assert [operation.id for operation in opened[2:]] == ["i1"], "what an agent's action does, once it does it"
    assert ended is not None
    assert (ended.action.state, ended.progress, ended.record) == ("succeeded", ("a",), {"name": "s"})
    assert (ended.drivers, ended.action.ended) == (("scale-1",), 2.0)


def test_an_agent_requested_again_as_it_is_stays_as_it_is(store: Store) -> None:
    with store.write() as connection:
        for document in ({"v": 1}, {"v": 1}, {"v": 2}):
            agent_store.put(connection, app="a", name="tracker", team="t", document=document, source=None)
        row = agent_store.find(connection, "a", "tracker")
        assert row is not None
        assert row.generation == 2
        assert agent_store.record_address(connection, app="a", name="tracker", url="http://127.0.0.1:1", pid=7, at=5.0)
        assert not agent_store.record_address(
            connection, app="a", name="tracker", url="http://127.0.0.1:1", pid=7, at=9.0
        )
        agent_store.mark_unwanted(connection, "a", "tracker")
        agent_store.count_restart(connection, "a", "tracker")
        row = agent_store.find(connection, "a", "tracker")
    assert row is not None
    assert (row.started, row.seen, row.wanted, row.restarts) == (5.0, 9.0, False, 1)


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("postgresql://me:hunter2@127.0.0.1:1/none", "postgresql+psycopg://me:***@127.0.0.1:1/none"),
        *(
            (f"postgresql://127.0.0.1:1/none?user=me&{name}=hunter2", "postgresql+psycopg://127.0.0.1:1/none")
            for name in ("password", "PASSWORD", "sslpassword")
        ),
    ],
)
def test_a_database_that_does_not_answer_is_named_without_its_password(address: str, shown: str) -> None:
    store = open_store(address)
    assert store.address == shown
    with pytest.raises(UnavailableError, match=re.escape(shown)) as error, store.read():
        pass
    assert "hunter2" not in str(error.value)
    store.close()


@pytest.mark.parametrize("address", ["postgresql://me:hunter2@h/d", "postgresql://me@h/d?password=hunter2&connect=1"])
def test_a_password_that_the_driver_repeats_is_not_shown(address: str) -> None:
    store = open_store(address)
    failure = DBAPIError(None, None, Exception("bad option in 'user=me password=hunter2 host=h'\nmore"))
    repeated = r"bad option in 'user=me password=\*\*\* host=h'\. "
    with pytest.raises(UnavailableError, match=repeated) as error, translate_errors(store.engine):
        raise failure
    assert "hunter2" not in str(error.value)
    store.close()


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("not an address", "is not a database URL"),
        ("mysql://host/database", "'mysql' is not supported"),
        ("sqlite://", "in memory would be lost"),
        ("postgresql://me:secret@host:port/database", "is not a database URL"),
        ("postgresql://me:sec@ret@host/database", "An @ in a password is written %40"),
    ],
)
def test_an_address_that_is_none_says_how_to_write_one(address: str, why: str) -> None:
    with pytest.raises(InvalidError, match=why) as error:
        open_store(address)
    assert "ret" not in str(error.value)


def test_a_full_or_broken_disk_is_reported_as_something_that_may_pass(tmp_path: Path) -> None:
    (tmp_path / "store.db").write_bytes(b"this is no database, and long enough to be taken for one" * 100)
    store = open_store(f"sqlite:///{tmp_path / 'store.db'}")
    with pytest.raises(UnavailableError, match=r"store.db.* cannot be used: file is not a database"), store.read():
        pass
    store.close()


def test_many_writes_leave_time_to_others_and_what_ends_them_leaves_whole_slices(store: Store) -> None:
    now, turns, finished = [0.0], list[int](), list[list[int]]()

    def write_item(connection: Connection, number: int) -> int:
        if number == 7:
            raise UsageError("no seventh")
        event_store.append(connection, [an_event(number)])
        now[0] += SLICE_S / 2
        return number

    def take_turn(_s: float) -> None:
        with store.write() as connection:
            event_store.append(connection, [an_event(-1)])
            turns.append(len(event_store.list_after(connection, 0)))

    def finish(_connection: Connection, written: list[int]) -> None:
        finished.append(written)

    with pytest.raises(UsageError, match="no seventh"):
        store.write_in_slices(range(10), write_item, finish=finish, clock=lambda: now[0], sleep=take_turn)
    assert (finished, turns) == ([[0, 1], [2, 3], [4, 5]], [3, 6, 9])
    with store.read() as connection:
        numbers = [event.data["number"] for event in event_store.list_after(connection, 0)]
    assert numbers == [0, 1, -1, 2, 3, -1, 4, 5, -1]
