"""The files of runs that pages show and link to: logs, and what steps left in their output folders."""

from __future__ import annotations

import mimetypes
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from scanflow.backends.log_reader import Stream
from scanflow.backends.run_records import StepFile
from scanflow.deployer import TaskLog
from scanflow.errors import NotFoundError, TooLargeError, UnsupportedError, UsageError
from scanflow_server.dashboard.page import FileContent, PageRequest
from scanflow_server.dashboard.run_reader import RunReader, get_run
from scanflow_server.streams import follow

PICTURES: Final = ("image/png", "image/jpeg", "image/gif", "image/webp", "image/svg+xml")
_MAX_FILE_BYTES: Final = 64 * 2**20
"""A larger file is not searched for secrets, and so is not sent."""


def open_log(request: PageRequest) -> FileContent:
    """Open the whole log of a task, with the run's secrets masked."""
    run, attempt = get_run(request), read_attempt(request)
    stream: Stream = "stderr" if request.query.get("stream") == "stderr" else "stdout"
    reader = request.context.deployer.log_reader(TaskLog(run.name, request.parameters["task"], stream, attempt))

    async def blocks() -> AsyncIterator[bytes]:
        async for part in follow(reader, follow_on=False):
            yield part.data

    return FileContent(blocks(), "text/plain; charset=utf-8")


def read_attempt(request: PageRequest) -> int | None:
    """Return the attempt that an address says; None: the last."""
    text = request.query.get("attempt", "")
    return int(text) if text.isascii() and text.isdecimal() and 0 < len(text) <= 6 else None


def open_file(request: PageRequest) -> FileContent:
    """Open a file that a task left; a picture is shown, any other is saved.

    Raises:
        NotFoundError: the task left no such file.
        UsageError: it holds a secret.
        TooLargeError, UnsupportedError: it cannot be sent.
    """
    reader, task, name = RunReader(request), request.parameters["task"], request.parameters["name"]
    content = read_file(reader, get_file(reader, task, name))
    media_type = guess_type(name)

    async def blocks() -> AsyncIterator[bytes]:
        yield content

    if media_type in PICTURES:
        return FileContent(blocks(), media_type)
    return FileContent(blocks(), saved_as=Path(name).name)


def get_file(reader: RunReader, task: str, name: str) -> StepFile:
    for file in reader.request.context.deployer.files(reader.run.name, task):
        if (file.task, file.name) == (task, name):
            return file
    raise NotFoundError(f"The task {task!r} of the run {reader.run.name!r} left no file {name!r}.")


def read_file(reader: RunReader, file: StepFile) -> bytes:
    if file.size_bytes > _MAX_FILE_BYTES:
        raise TooLargeError(
            f"{file.name!r} has more than {_MAX_FILE_BYTES / 2**20:g} MiB, the most that a page sends. Copy it from "
            f"where the backend runs: {file.path}"
        )
    content = locate_file(reader, file).read_bytes()
    if reader.masker.occurs_in_bytes(content):
        raise UsageError(
            f"{file.name!r} holds a secret of the application, which a server sends to nobody. Read it where the "
            f"run's home is: {file.path}"
        )
    return content


def locate_file(reader: RunReader, file: StepFile) -> Path:
    """Return where a file is on this machine; UnsupportedError: it is not here, or not among its application's runs."""
    path, folder = Path(file.path).resolve(), reader.run.folder
    if not folder or not path.is_relative_to(Path(folder).resolve().parent) or not path.is_file():
        raise UnsupportedError(f"{file.name!r} is not on the server's machine. Copy it from the backend: {file.path}")
    return path


def guess_type(name: str) -> str:
    return mimetypes.guess_type(name, strict=False)[0] or "application/octet-stream"
