"""The agent's process: ``python -m scanflow_agents FOLDER``."""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import stamina

from scanflow.errors import AlreadyRunningError, InvalidError, ScanflowError, UsageError
from scanflow.files.private import open_private, write_private
from scanflow.processes.home_watch import end_with_home
from scanflow.processes.masked_output import OutputMask
from scanflow_agents.host.spec import AgentSpec, read_spec

CONFIGURATION = 78
"""The exit status of an agent that cannot start until its configuration is changed (``EX_CONFIG``)."""

_log = logging.getLogger("scanflow_agents")


def main(folder: Path) -> int:
    """Host the agent of ``folder`` until a signal stops it; return the exit status."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr)
    stamina.instrumentation.set_on_retry_hooks([])  # retries are logged with their reason elsewhere
    for noisy in ("apscheduler", "httpx2"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    output = OutputMask()
    try:
        with _hold_lock(folder):
            end_with_home(folder)
            return asyncio.run(_serve(folder, read_spec(folder), output))
    except ScanflowError as error:
        reason = output.masker.mask_text(str(error))
        _log.error("%s", reason)
        _write_document(folder, "failure.json", {"error": reason, "type": type(error).__name__})
        return CONFIGURATION if isinstance(error, UsageError) else 1
    except Exception as error:  # noqa: BLE001 - the edge of the program: the error is recorded for its supervisor
        _log.exception("The agent crashed")
        kind = type(error).__name__
        _write_document(folder, "failure.json", {"error": output.masker.mask_text(f"{kind}: {error}"), "type": kind})
        return 1


@contextmanager
def _hold_lock(folder: Path) -> Iterator[None]:
    with open_private(folder / "lock", "a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise AlreadyRunningError(f"Another process already hosts the agent in {str(folder)!r}.") from error
        yield


async def _serve(folder: Path, spec: AgentSpec, output: OutputMask) -> int:
    from scanflow_agents.host.host_assembly import build, list_accepted_tokens
    from scanflow_agents.host.http_api import build_quiet_server, make_api

    loop = asyncio.get_running_loop()
    ending = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ending.set)

    def report_trouble(why: str | None) -> None:
        try:
            ailment = None if why is None else {"error": output.masker.mask_text(why)}
            _write_document(folder, "ailment.json", ailment)
        except OSError as error:  # the store reports a full disk
            _log.warning("The agent's failure could not be recorded: %s", error)

    report_trouble(None)
    host, close = build(folder, spec, clock=time.time, report_trouble=report_trouble, output=output)
    with _open_listener(spec.host, spec.port) as listener:
        url = spec.url or _format_url(spec, listener.getsockname()[1])
        name = urlsplit(url).hostname or ""
        server = build_quiet_server(make_api(host, tokens=list_accepted_tokens(spec), hosts=(name,)), spec.tls)
        host.start(url)
        await host.state.writer.flush()
        api = loop.create_task(server.serve([listener]))
        _write_document(folder, "address.json", {"url": url, "pid": os.getpid()})
        _write_document(folder, "failure.json", None)  # only now: while it starts, the last failure is shown
        _log.info("agent %s of %s is at %s", spec.agent, host.app, url)
        watched = loop.create_task(host.state.writer.broken.wait())
        ended = loop.create_task(ending.wait())
        await asyncio.wait([ended, api, watched], return_when=asyncio.FIRST_COMPLETED)
        server.end()
        await asyncio.wait([api], timeout=1.5)
        for task in (watched, ended):
            task.cancel()
        await asyncio.wait_for(host.stop(patience_s=1.0), 2.5)
        await close()
        return 0 if ending.is_set() else 1


def _format_url(spec: AgentSpec, port: int) -> str:
    host = spec.host if spec.tls is None else spec.tls.name or spec.host
    return f"{'http' if spec.tls is None else 'https'}://{host}:{port}"


def _open_listener(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), backlog=128)
    except OSError as error:
        raise InvalidError(
            f"The agent cannot listen on the port {port}: {error}. Choose another port, or 0 for any."
        ) from error


def _write_document(folder: Path, name: str, document: Mapping[str, Any] | None) -> None:
    """Write a document into the folder, for other processes; None: remove it."""
    if document is None:
        (folder / name).unlink(missing_ok=True)
        return
    draft = folder / f"{name}.part"
    write_private(draft, json.dumps(document))
    draft.rename(folder / name)
