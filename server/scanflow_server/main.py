"""The program: ``python -m scanflow_server [--host HOST] [--port PORT] [--home DIR]``."""

from __future__ import annotations

import argparse
import fcntl
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from scanflow.errors import AlreadyRunningError, ScanflowError, UsageError
from scanflow.files.open_files import raise_open_file_limit
from scanflow.files.private import create_private_folder, open_home, open_private, write_private
from scanflow.knowledge.step_environment import locate_tracker
from scanflow.processes.home_watch import end_with_home
from scanflow.processes.shared_files import try_lock
from scanflow_server.leader_election import EndedError, build_http_options, hold_lease
from scanflow_server.server_settings import ServerSettings

if TYPE_CHECKING:  # the database's libraries take their time
    from scanflow_server.server_context import ServerContext

_log = logging.getLogger("scanflow_server")

_LOCK_TIMEOUT_S = 3.0  # a killed server may take a moment to exit
_SHUTDOWN_TIMEOUT_S = 1
"""How long requests may take at shutdown, in seconds; streams are closed, and their readers reconnect."""


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until a signal stops the server, and return the exit code: 2 for wrong usage."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    for noisy in ("alembic", "httpx2"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    try:
        settings = _parse_settings(argv)
        settings.check_exposure()
        raise_open_file_limit()
        locate_tracker(settings.home, settings.library.tracker_uri)  # refuses a path that no address can hold
        if settings.sign_in is not None:
            _check_sign_in(settings, settings.sign_in.issuer)
        with open_listener(settings) as listener, hold_lease(settings, listener), _hold_home_lock(settings.folder):
            _serve(settings, listener)
    except EndedError:
        return 0
    except ScanflowError as error:
        sys.stderr.write(f"{error}\n")
        return 2 if isinstance(error, UsageError) else 3
    return 0


def _parse_settings(argv: Sequence[str] | None) -> ServerSettings:
    parser = argparse.ArgumentParser(prog="python -m scanflow_server", description="Scanflow's control plane.")
    parser.add_argument("--host", help="the address to listen on (SCANFLOW_SERVER_HOST; 127.0.0.1)")
    parser.add_argument("--port", type=int, help="the port; 0: any (SCANFLOW_SERVER_PORT; 46666)")
    parser.add_argument("--home", type=Path, help="the home folder (SCANFLOW_HOME; ~/.scanflow)")
    arguments = parser.parse_args(argv)
    settings = ServerSettings.from_environment()
    library = (
        settings.library if arguments.home is None else settings.library.model_copy(update={"home": arguments.home})
    )
    changes = {name: value for name in ("host", "port") if (value := getattr(arguments, name)) is not None}
    return ServerSettings.model_validate({**dict(settings), "library": library, **changes})


def _check_sign_in(settings: ServerSettings, issuer: str) -> None:
    """Refuse a provider at which nobody could sign in. One that could be used before may be away for now."""
    from scanflow_server.identity_provider import check_provider

    create_private_folder(open_home(settings.home) / settings.folder.name)
    known = settings.folder / "oidc-issuer"
    check_provider(settings, is_known=known.exists() and known.read_text(encoding="utf-8") == issuer)
    write_private(known, issuer)


@contextmanager
def _hold_home_lock(folder: Path) -> Iterator[None]:
    """Hold the lock of a home, which only one server at a time can have."""
    create_private_folder(open_home(folder.parent) / folder.name)
    with open_private(folder / "lock", "a+", encoding="ascii") as file:
        give_up = time.monotonic() + _LOCK_TIMEOUT_S
        while not try_lock(file.fileno(), fcntl.LOCK_EX):
            if time.monotonic() > give_up:
                file.seek(0)
                raise AlreadyRunningError(
                    f"A server of {str(folder.parent)!r} is already running: process "
                    f"{file.read().strip() or 'unknown'}. Check it: scanflow status. Or use another home: --home"
                )
            time.sleep(0.05)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        end_with_home(folder)
        yield


@contextmanager
def open_listener(settings: ServerSettings) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((settings.host, settings.port))
        except OSError as error:
            raise UsageError(
                f"The server cannot listen on {settings.host}:{settings.port}: {error.strerror}. Choose another port: "
                "--port"
            ) from error
        yield listener


def _ignore_signal(_number: int, _frame: object) -> None:
    """Do nothing: after its shutdown uvicorn raises the signal again, which must not end the process."""


def prepare_database(context: ServerContext) -> None:
    """Check the database, migrate it, and record that it is this home's.

    Raises:
        ScanflowError: the database is damaged, was emptied, or is a newer version's.
    """
    from scanflow_server.store.integrity import check_content, check_pages, record_store
    from scanflow_server.store.migrations import migrate

    check_pages(context.store)
    check_content(context.store, context.settings.folder, is_migrated=False)
    migrate(context.store)
    check_content(context.store, context.settings.folder, is_migrated=True)
    record_store(context.store, context.settings.folder)


def _serve(settings: ServerSettings, listener: socket.socket) -> None:
    import uvicorn

    from scanflow_server.app import create_app
    from scanflow_server.auth import register_home
    from scanflow_server.http_server import Server
    from scanflow_server.server_context import make_context

    context = make_context(settings)
    try:
        prepare_database(context)
        register_home(context)
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        scheme = "http" if settings.tls_cert is None else "https"
        context.url = f"{scheme}://{host}:{listener.getsockname()[1]}"
        config = uvicorn.Config(
            create_app(context), timeout_graceful_shutdown=_SHUTDOWN_TIMEOUT_S, **build_http_options(settings)
        )
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, _ignore_signal)
        _log.info("serving %s on %s", settings.home, context.url)
        Server(config).run(sockets=[listener])
    finally:
        context.store.close()
