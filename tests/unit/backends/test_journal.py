from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from scanflow.backends.journal import CachedOutputs, DamagedJournalError, Journal, JournalRun
from scanflow.backends.run_records import DeviceUse, TaskRecord, TaskState
from scanflow.deployer import EmbeddedDeployer
from scanflow.errors import InvalidError, NotFoundError, UnavailableError, UsageError
from scanflow.names import RunName, StepName
from scanflow.settings import Settings
from scanflow.text.failures import Failure
from tests.waiting import PATIENCE_S

NAMES = random.Random(0)


def enter(journal: Journal, rng: random.Random | None = None, **about: Any) -> JournalRun:
    fields: dict[str, Any] = {"app": "a", "team": "t", "workflow": "w", "source": None, "definition": "{}", **about}
    return journal.create_run(parent=Path("/runs"), rng=rng or NAMES, **fields)


def task(name: str, state: TaskState = "running") -> TaskRecord:
    return TaskRecord(task=StepName(name), step=name, state=state)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with closing(Journal(tmp_path / "journal.db")) as journal:
        yield journal


def test_runs_get_names_of_their_own_even_from_the_same_dice(journal: Journal) -> None:
    names = {enter(journal, random.Random(1)).record.name for _ in range(20)}
    assert len(names) == 20


def test_a_run_entered_under_a_name_is_entered_once(journal: Journal) -> None:
    def enter_run(definition: str) -> JournalRun:
        return enter(journal, definition=definition, name=RunName("calm-otter-417"), tasks=[task("load", "succeeded")])

    first = enter_run("{}")
    assert enter_run("{}").id == first.id
    assert list(journal.read_tasks(first)) == ["load"]
    assert [record.name for record in journal.runs(limit=9)] == ["calm-otter-417"]
    with pytest.raises(InvalidError, match="'calm-otter-417' already"):
        enter_run('{"other": 1}')
    assert journal.free_name(random.Random(1)) == enter(journal, random.Random(1)).record.name


def test_latest_is_the_newest_and_can_be_counted_back_from(journal: Journal) -> None:
    rng = random.Random(1)
    first, second = enter(journal, rng), enter(journal, rng)
    assert journal.run("@latest").record.name == second.record.name
    assert journal.run("@latest-1").record.name == first.record.name
    assert [record.name for record in journal.runs(limit=1)] == [second.record.name]


def test_an_unknown_run_says_what_there_is(journal: Journal) -> None:
    with pytest.raises(NotFoundError, match="There is no run yet"):
        journal.run("@latest")
    run = enter(journal, random.Random(1))
    with pytest.raises(NotFoundError, match=f"There is no run 'nope'.*{run.record.name}"):
        journal.run("nope")
    with pytest.raises(NotFoundError, match="'@latest-x' cannot be read"):
        journal.run("@latest-x")


def test_a_task_comes_back_as_it_was_written(journal: Journal) -> None:
    run = enter(journal, random.Random(1))
    record = TaskRecord(
        task=StepName("train.3"),
        step="train",
        state="failed",
        attempts=2,
        began=1.5,
        seconds=0.25,
        exit_code=1,
        cpu_s=0.5,
        max_rss_bytes=10,
        failure=Failure(summary="exit code 1", frames=("a", "b"), cause="boom"),
    )
    journal.set_task(run, record)
    assert journal.read_tasks(run) == {"train.3": record}


def test_changes_made_together_are_kept_together_or_not_at_all(journal: Journal) -> None:
    run = enter(journal)

    def half() -> None:
        with journal.transaction():
            journal.set_task(run, task("a"))
            raise KeyError

    with pytest.raises(KeyError):
        half()
    assert journal.read_tasks(run) == {}


def test_changed_tasks_are_those_written_since_the_last_look(journal: Journal) -> None:
    run, other = enter(journal, random.Random(1)), enter(journal, random.Random(1))
    journal.set_task(run, task("a", "running"))
    journal.set_task(run, task("b", "running"))
    journal.set_task(other, task("z", "running"))
    tasks, last = journal.read_changed_tasks(run, -1)
    assert tasks == [task("a", "running"), task("b", "running")]
    assert journal.read_changed_tasks(run, last) == ([], last)
    journal.set_task(run, task("a", "succeeded"))
    assert journal.read_changed_tasks(run, last)[0] == [task("a", "succeeded")]
    assert journal.read_task(run, "a") == task("a", "succeeded")
    assert journal.read_task(run, "z") is None


def test_the_gpus_of_a_task_are_read_as_they_were_written(journal: Journal) -> None:
    run = enter(journal)
    use = DeviceUse(number=0, uuid="GPU-a", sharing="mps", share=0.5, peak_bytes=3, others=("other 1",))
    record = task("a", "succeeded").model_copy(update={"devices": (use,)})
    journal.set_task(run, record)
    assert journal.read_tasks(run) == {"a": record}


@pytest.mark.parametrize(
    "before",
    [
        """DROP TABLE cache; CREATE TABLE cache (key TEXT PRIMARY KEY, run TEXT NOT NULL, folder TEXT NOT NULL);
        ALTER TABLE tasks DROP COLUMN cache_note; PRAGMA user_version = 3;""",
        "DROP INDEX changes_of; ALTER TABLE tasks DROP COLUMN change; PRAGMA user_version = 2;",
        "DROP INDEX runs_of; PRAGMA user_version = 1;",
        "DROP INDEX runs_of; CREATE INDEX runs_of ON runs (app, team, workflow); PRAGMA user_version = 4;",
        "ALTER TABLE tasks DROP COLUMN devices; PRAGMA user_version = 5;",
        "ALTER TABLE tasks DROP COLUMN waits_for; PRAGMA user_version = 6;",
    ],
)
def test_a_journal_of_an_earlier_version_is_read_on(tmp_path: Path, before: str) -> None:
    path = tmp_path / "journal.db"
    with closing(Journal(path)) as journal:
        run = enter(journal)
        journal.set_task(run, task("a", "succeeded"))
    with closing(sqlite3.connect(path)) as old:
        old.executescript(before)
    with closing(Journal(path)) as journal:
        assert journal.read_tasks(run) == {"a": task("a", "succeeded")}
        journal.set_task(run, task("a", "running"))
        assert [record.state for record in journal.read_changed_tasks(run, -1)[0]] == ["running"]
        outputs = CachedOutputs(run.record.name, tmp_path, "digest")
        journal.remember("k", outputs, step="a/t/w/s", parts={"code": "1"})
        assert journal.find_cached_outputs("k") == outputs
    with closing(sqlite3.connect(path)) as db:
        order = "ORDER BY created DESC, id DESC LIMIT 9"
        query = f"SELECT * FROM runs WHERE app = 'a' AND team = 't' AND workflow = 'w' {order}"
        (plan,) = db.execute(f"EXPLAIN QUERY PLAN {query}").fetchall()
        assert plan[3] == "SEARCH runs USING INDEX runs_of (app=? AND team=? AND workflow=?)"
        assert db.execute("PRAGMA user_version").fetchone() == (7,)


def test_what_is_cached_outlives_a_new_version_of_the_journal(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    with closing(Journal(path)) as journal:
        outputs = CachedOutputs(enter(journal).record.name, tmp_path, "digest")
        journal.remember("k", outputs, step="a/t/w/s", parts={"code": "1"})
    with closing(sqlite3.connect(path)) as old:
        old.executescript("PRAGMA user_version = 4;")
    with closing(Journal(path)) as journal:
        assert journal.find_cached_outputs("k") == outputs


def test_runs_are_in_the_order_in_which_they_were_created(journal: Journal) -> None:
    late, early = enter(journal, created=20.0), enter(journal, created=10.0)
    assert [record.name for record in journal.runs(limit=9)] == [late.record.name, early.record.name]
    assert journal.run("@latest").record.name == late.record.name


def test_tasks_that_are_replaced_are_followed(journal: Journal) -> None:
    run = enter(journal)
    journal.set_task(run, task("a", "succeeded"))
    journal.set_task(run, task("b", "running"))
    _, last = journal.read_changed_tasks(run, -1)
    journal.replace_tasks(run, [task("a", "succeeded"), task("c", "running")])
    assert set(journal.read_tasks(run)) == {"a", "c"}
    assert [record.task for record in journal.read_changed_tasks(run, last)[0]] == ["c"]


def test_the_parts_of_a_steps_keys_are_read_the_newest_first_without_those_of_one_run(
    journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter(range(9))
    monkeypatch.setattr("time.time", lambda: float(next(times)))
    for key, run, step in (("a", "r1", "s"), ("b", "r2", "s"), ("c", "r3", "s"), ("d", "r1", "other")):
        journal.remember(key, CachedOutputs(RunName(run), tmp_path, ""), step=step, parts={"x": key})
    assert journal.read_cached_parts("s", except_run=RunName("r3")) == [{"x": "b"}, {"x": "a"}]


def test_a_request_to_stop_is_seen_by_others_and_taken_back_by_going_on(journal: Journal, tmp_path: Path) -> None:
    run = enter(journal, random.Random(1))
    with closing(Journal(tmp_path / "journal.db")) as other:
        other.request_stop(run)
        assert journal.is_stop_requested(run)
        journal.set_run(run, "running")
        assert not other.is_stop_requested(run)


def test_a_damaged_journal_says_what_to_look_at(tmp_path: Path) -> None:
    (tmp_path / "journal.db").write_bytes(b"this is not a database" * 100)
    with pytest.raises(UnavailableError, match="cannot be used: it is not a database"):
        Journal(tmp_path / "journal.db")


def test_a_full_disk_is_an_error_of_the_outside(
    journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = enter(journal, random.Random(1))

    def connect_without_space(*args: Any, **options: Any) -> sqlite3.Connection:
        connection = sqlite3.Connection(*args, **options)
        connection.execute(f"PRAGMA max_page_count = {connection.execute('PRAGMA page_count').fetchone()[0]}")
        return connection

    long = Failure(summary="x" * 100_000)
    with monkeypatch.context() as patch:
        patch.setattr(sqlite3, "connect", connect_without_space)
        full = Journal(tmp_path / "journal.db")
    with closing(full), pytest.raises(UnavailableError, match="its disk is full"):
        full.set_task(run, TaskRecord(task=StepName("a"), step="a", state="failed", failure=long))
    assert journal.read_tasks(run) == {}


@pytest.mark.processes
def test_eight_processes_write_at_once_and_none_is_turned_away(tmp_path: Path) -> None:
    program = """
import random, sys
from pathlib import Path
from typing import Any
from scanflow.backends import journal as store
from scanflow.backends.run_records import TaskRecord
store.BUSY_TIMEOUT_S = float(sys.argv[3])
journal = store.Journal(Path(sys.argv[1]))
run = journal.create_run(app="a", team="t", workflow="w", parent=Path("/r"), source=None, definition="{}",
                         rng=random.Random(int(sys.argv[2])))
for index in range(100):
    journal.set_task(run, TaskRecord(task=f"s.{index}", step="s", state="running"))
"""
    path = tmp_path / "home" / "journal.db"
    writers = [
        subprocess.Popen([sys.executable, "-c", program, str(path), str(number), str(PATIENCE_S)])
        for number in range(8)
    ]
    assert [writer.wait(PATIENCE_S) for writer in writers] == [0] * 8
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT count(*) FROM tasks").fetchone() == (800,)
        assert db.execute("SELECT count(*) FROM runs").fetchone() == (8,)


def test_runs_of_one_workflow_are_found_among_any_number_of_others(journal: Journal) -> None:
    mine = [enter(journal, app="a", team="t", workflow="training").record.name for _ in range(3)]
    for number in range(50):
        for app, team, workflow in (("b", "t", "training"), ("a", "u", "training"), ("a", "t", f"w{number}")):
            enter(journal, app=app, team=team, workflow=workflow)
    records = journal.runs(limit=2, app="a", team="t", workflow="training")
    assert [record.name for record in records] == [mine[2], mine[1]]
    assert len(journal.runs(limit=1000, app="a", team="t")) == 53
    assert len(journal.runs(limit=1000, workflow="training")) == 103
    assert len(journal.runs(limit=1000, team="u", app="a")) == 50
    assert journal.runs(limit=1000, app="a' OR 1 --") == []


def test_a_journal_of_a_newer_version_is_refused_by_name_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    with closing(Journal(path)):
        pass
    with closing(sqlite3.connect(path)) as newer:
        newer.execute("PRAGMA user_version = 999")
    before = path.read_bytes()
    with pytest.raises(
        UsageError, match=r"journal\.db' was written by a newer Scanflow: its version is 999.*SCANFLOW_HOME"
    ):
        Journal(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "loss",
    ["DROP TABLE cache", "DROP TABLE tasks", "ALTER TABLE runs RENAME TO r", "ALTER TABLE tasks DROP COLUMN began"],
)
def test_a_journal_that_lost_a_table_or_a_column_is_damaged(tmp_path: Path, loss: str) -> None:
    path = tmp_path / "journal.db"
    with closing(Journal(path)):
        pass
    with closing(sqlite3.connect(path)) as changed:
        changed.execute(loss)
    with pytest.raises(DamagedJournalError, match="has lost"):
        Journal(path)


def test_a_deployer_looks_at_all_pages_of_the_journal_once(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    deployer, checked = EmbeddedDeployer(settings), list[Journal]()
    deployer.runs()

    def check(journal: Journal) -> None:
        checked.append(journal)

    monkeypatch.setattr(Journal, "check", check)
    for _ in range(3):
        deployer.runs()
    assert checked == []
    EmbeddedDeployer(settings).runs()
    assert len(checked) == 1
