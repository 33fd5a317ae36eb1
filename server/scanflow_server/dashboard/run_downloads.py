"""Logs and files of runs that pages show and link to."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import PurePath
from typing import Final

from scanflow.backends.log_reader import Stream
from scanflow.deployer import TaskLog
from scanflow.reports.output_views import PICTURES, guess_media_type
from scanflow_server.dashboard.dashboard_page import FileContent, PageFile, PageRequest
from scanflow_server.dashboard.page_windows import parse_number
from scanflow_server.run_reader import RunReader
from scanflow_server.scope import get_own_run
from scanflow_server.streams import follow


def open_run(request: PageRequest, name: str | None = None) -> RunReader:
    """Return a reader of the run of a page's address, or of another one that the caller may see."""
    run = get_own_run(request.context, request.caller, name or request.parameters["run"])
    return RunReader(request.context, run)


def read_attempt(request: PageRequest) -> int | None:
    """Return the attempt that an address says; None: the last."""
    return parse_number(request.query.get("attempt", ""), max_digits=6)


def open_log(request: PageRequest) -> FileContent:
    """Open the whole log of a task, with the run's secrets masked."""
    run = open_run(request).run
    stream: Stream = "stderr" if request.query.get("stream") == "stderr" else "stdout"
    of = TaskLog(run.name, request.parameters["task"], stream, read_attempt(request) or None)
    reader = request.context.deployer.log_reader(of)

    async def blocks() -> AsyncIterator[bytes]:
        rest = b"Nothing is printed yet.\n"
        async for part in follow(reader, follow_on=False):
            rest = b""
            yield part.data
        yield rest

    return FileContent(blocks(), "text/plain; charset=utf-8")


def open_file(request: PageRequest) -> FileContent:
    """Open a file that a task left: a picture is shown, any other is saved."""
    name = request.parameters["name"]
    content, media_type = open_run(request).read_file(request.parameters["task"], name), guess_media_type(name)

    async def blocks() -> AsyncIterator[bytes]:
        yield content

    if media_type in PICTURES:
        return FileContent(blocks(), media_type)
    return FileContent(blocks(), saved_as=PurePath(name).name)


SERVED: Final = (
    PageFile(path="/runs/{run}/logs/{task}", open=open_log),
    PageFile(path="/runs/{run}/files/{task}/{name:path}", open=open_file),
)
