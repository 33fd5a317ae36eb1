"""Smaller parts of the server: its settings, its loop, its streams, and what is seen of a run from outside."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from scanflow.backends.run_records import RunRecord, TaskRecord
from scanflow.errors import InvalidError, UnavailableError
from scanflow.names import RunName, StepName
from scanflow_server import controller_loop as loops
from scanflow_server.bodies import check_text
from scanflow_server.change_notifier import ChangeNotifier
from scanflow_server.controller_loop import ErrorIsolation, Loop
from scanflow_server.progress_events import derive_events
from scanflow_server.server_settings import ServerSettings
from scanflow_server.streams import PING, add_pings
from tests.waiting import PATIENCE_S, wait_until


def test_settings_come_from_the_environment_and_show_no_password() -> None:
    fields = {
        "SCANFLOW_HOME": "/somewhere",
        "SCANFLOW_SERVER_PORT": "1234",
        "SCANFLOW_DATABASE_URL": "postgresql://me:secret@host/db",
        "SCANFLOW_MAX_RUNS": "",
    }
    settings = ServerSettings.from_environment(fields)
    assert (settings.home, settings.port, settings.host) == (Path("/somewhere"), 1234, "127.0.0.1")
    assert settings.database == "postgresql://me:secret@host/db"
    assert "secret" not in repr(settings)
    assert ServerSettings.from_environment({"SCANFLOW_HOME": "/h"}).database == "sqlite:////h/server/scanflow.db"


def test_a_setting_that_cannot_be_names_its_variable() -> None:
    with pytest.raises(InvalidError, match="SCANFLOW_SERVER_PORT='99999' is invalid"):
        ServerSettings.from_environment({"SCANFLOW_SERVER_PORT": "99999"})


class Troubled:
    """A controller that fails before it succeeds."""

    def __init__(self, *errors: BaseException) -> None:
        self._errors = list(errors)
        self.well = threading.Event()

    def tick(self) -> float:
        if self._errors:
            raise self._errors.pop(0)
        self.well.set()
        return 1e9


def test_a_controller_that_fails_looks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "RETRY_PAUSE_S", 0.0)
    # The last is how a library would end the whole program.
    troubled = Troubled(UnavailableError("The database is away."), RuntimeError("a defect"), SystemExit(1))
    loop = Loop([troubled], ChangeNotifier())
    loop.start()
    assert troubled.well.wait(PATIENCE_S)
    loop.stop()


def test_a_ring_is_followed_by_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "RETRY_PAUSE_S", 1e9)
    troubled, bell = Troubled(UnavailableError("away"), UnavailableError("away")), ChangeNotifier()
    loop = Loop([troubled], bell)
    loop.start()

    def look_again() -> bool:
        bell.notify()
        return troubled.well.is_set()

    wait_until(look_again, "it has looked until all was well")
    loop.stop()


def test_what_goes_wrong_with_one_thing_is_reported_once_until_it_is_well_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    apart = ErrorIsolation()

    def look(error: BaseException | None) -> None:
        with apart.isolate("The run 'r'"):
            if error is not None:
                raise error

    for error in (OSError("full"), OSError("full"), UnavailableError("away"), None, UnavailableError("away")):
        look(error)
    assert [record.getMessage() for record in caplog.records] == [
        "The run 'r' could not be processed and will be retried: OSError: full",
        "The run 'r' could not be processed and will be retried: away",
        "The run 'r' could not be processed and will be retried: away",
    ]
    assert [record.exc_info is not None for record in caplog.records] == [True, False, False]
    with pytest.raises(KeyboardInterrupt):
        look(KeyboardInterrupt())


def test_a_stream_in_which_nothing_happens_says_that_it_lives() -> None:
    async def read() -> list[bytes]:
        go = asyncio.Event()

        async def blocks() -> AsyncIterator[bytes]:
            yield b"one"
            await go.wait()
            yield b"two"

        seen = []
        async for block in add_pings(blocks(), every_s=0.01):
            seen.append(block)
            if block == PING:
                go.set()
        return seen

    seen = asyncio.run(asyncio.wait_for(read(), PATIENCE_S))
    assert (seen[0], seen[-1]) == (b"one", b"two")
    assert PING in seen


def test_a_stream_that_nobody_reads_any_more_is_closed() -> None:
    closed: list[bool] = []

    async def read() -> None:
        async def blocks() -> AsyncIterator[bytes]:
            try:
                yield b"one"
                await asyncio.Event().wait()
            finally:
                closed.append(True)

        stream = add_pings(blocks(), every_s=0.01)
        await anext(stream)
        await anext(stream)
        await stream.aclose()  # type: ignore[attr-defined]  # what is handed out is a generator
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(read(), PATIENCE_S))
    assert closed == [True]


def make_run(*tasks: TaskRecord) -> RunRecord:
    return RunRecord.model_validate(
        {"name": "r", "app": "a", "team": "t", "workflow": "w", "state": "running", "created": 1.0, "folder": "/r"}
    ).model_copy(update={"tasks": tasks, "name": RunName("r")})


def a_task(name: str, state: str, attempts: int = 1) -> TaskRecord:
    step = name.partition(".")[0]
    return TaskRecord.model_validate({"task": StepName(name), "step": step, "state": state, "attempts": attempts})


def test_what_happened_between_two_looks_is_reported_once() -> None:
    first = make_run(a_task("load", "running"), a_task("work.0", "pending", 0), a_task("work.1", "pending", 0))
    second = make_run(a_task("load", "succeeded"), a_task("work.0", "succeeded"), a_task("work.1", "running", 2))
    assert [event.kind for event in derive_events(None, first)] == ["run-started", "task-started"]
    assert derive_events(first, first) == []
    events = derive_events(first, second)
    assert [event.kind for event in events] == ["task-ended", "task-started", "task-ended", "task-started"]
    assert [getattr(event, "width", None) for event in events] == [1, 2, 2, 2]


@pytest.mark.parametrize(
    "value",
    ["a\0b", "\ud800", {"k\udfff": 1}, [float("nan")], {"a": {"b": [float("inf")]}}, json.loads("[" * 200 + "]" * 200)],
)
def test_what_could_not_be_kept_and_reported_again_is_refused(value: object) -> None:
    with pytest.raises(InvalidError):
        check_text(value)
