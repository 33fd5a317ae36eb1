"""Commands to a supervisor: start it, wake it, and wait until a change is in effect.

A supervisor is started under a shim that restarts it. Waiting has a time limit, and reports events meanwhile.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress

from scanflow.backends.local.services.service_layout import ServiceFolder
from scanflow.backends.local.services.state.desired import read_desired
from scanflow.backends.local.services.state.observed import is_current, is_supervised, read_observed
from scanflow.backends.service_desired import DesiredState
from scanflow.backends.service_records import Progress, ServiceObserver, ServiceRecord
from scanflow.errors import NotFoundError, UnavailableError, UsageError, end_sentence
from scanflow.files.private import create_private_folder
from scanflow.processes import restarter, seqpacket

_POLL_S = 0.02
_PATIENCE_S = 20.0  # until a supervisor has started
_RETRY_PAUSE_S = 1.0
_REFRESH_S = 1.0
_START_S = 5.0
_GONE_TIMEOUT_S = 120.0  # longest wait until a deleted service has ended
_REPORT_INTERVAL_S = 10.0  # longest wait for the first report of a new supervisor
_RETURN_TIMEOUT_S = 30.0  # longest wait until the previous definition is served again


def start_supervisor(folder: ServiceFolder, *, inherit: Sequence[int] = ()) -> None:
    """Start a shim with a supervisor, which ends at once if there is one already.

    ``inherit``: open sockets that all processes of the service inherit, under these numbers.

    Raises:
        UnavailableError: no process can be started.
    """
    supervisor = [sys.executable, "-m", "scanflow.backends.local.services.supervisor", str(folder.path)]
    command = [sys.executable, "-IS", restarter.__file__, str(folder.shim), str(folder.log), *supervisor]
    try:
        create_private_folder(folder.path)
        subprocess.run(
            command,
            cwd="/",
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=inherit,
            umask=0o077,
            check=True,
            timeout=_PATIENCE_S,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise UnavailableError(f"The supervisor of {folder.path.name!r} cannot be started: {error}.") from error


def ensure_supervisor(folder: ServiceFolder) -> bool:
    """Ensure that a service has a supervisor; return whether there was none before.

    Raises:
        UnavailableError: the supervisor did not start; the message has its log's path.
    """
    if is_supervised(folder):
        return False
    deadline, again = time.monotonic() + _PATIENCE_S, 0.0
    while not wake_supervisor(folder):
        now = time.monotonic()
        if now > deadline:
            raise UnavailableError(
                f"The supervisor of {folder.path.name!r} did not start within {_PATIENCE_S:.0f} s. See its log: "
                f"{str(folder.log)!r}"
            )
        if now >= again and not is_supervised(folder):  # an earlier shim may have been ending
            start_supervisor(folder)
            again = now + _RETRY_PAUSE_S
        time.sleep(_POLL_S)
    return True


def wake_supervisor(folder: ServiceFolder) -> bool:
    """Wake the supervisor, which otherwise polls every second; return whether there is one."""
    try:
        seqpacket.connect(folder.socket).close()
    except OSError:
        return False
    return True


def refresh_reports(folders: Iterable[ServiceFolder]) -> None:
    """Have supervisors report the state and the counts of this moment; return when they have, or after a second."""
    deadline = time.monotonic() + _REFRESH_S
    with ExitStack() as stack:
        peers = []
        for folder in folders:
            with suppress(OSError):  # no supervisor: what it reported last is what there is
                peers.append(stack.enter_context(seqpacket.connect(folder.socket)))
        for peer in peers:
            peer.settimeout(max(0.001, deadline - time.monotonic()))
            with suppress(OSError):
                peer.recv(1)  # ends when the supervisor closes the connection


class Watcher:
    """Reports a supervisor's new events to an observer, each once."""

    def __init__(self, folder: ServiceFolder, observe: ServiceObserver) -> None:
        self._folder, self._observe = folder, observe
        state = read_observed(folder)
        self._seen = state.events[-1].number if state and state.events else 0

    def report_events(self) -> ServiceRecord | None:
        state = read_observed(self._folder)
        for event in state.events if state else ():
            if event.number > self._seen:
                self._seen = event.number
                self._observe(Progress(service=self._folder.path.name, text=event.text))
        return state.record if state else None


def wait_until_settled(folder: ServiceFolder, generation: int, watcher: Watcher, timeout_s: float) -> ServiceRecord:
    """Return the service once a change is in effect, or a newer one is.

    Raises:
        UsageError: the change failed; the previous definition is served on.
        UnavailableError: it takes too long; it continues in the background.
        NotFoundError: the service was deleted meanwhile.
    """
    name, deadline = folder.path.name, time.monotonic() + timeout_s
    failed_at: float | None = None
    wake_supervisor(folder)
    while True:
        desired = read_desired(folder)
        if desired is None or desired.deleted:
            raise NotFoundError(f"The service {name!r} was deleted meanwhile.")
        record = watcher.report_events()
        if desired.failed is not None and desired.failed.generation >= generation:
            failed_at = failed_at or time.monotonic()
            over = desired.in_effect or (desired.hopeless and not is_supervised(folder))
            if over or time.monotonic() - failed_at > _RETURN_TIMEOUT_S:
                watcher.report_events()
                raise UsageError(_describe_failure(desired))
        elif record is not None and min(desired.settled, record.settled) >= generation:
            return record
        if time.monotonic() > deadline:
            raise UnavailableError(
                f"The change of {name!r} did not take effect within {timeout_s:.0f} s and is still in progress. Watch "
                f"it: scanflow services {name}"
            )
        if not desired.hopeless:
            ensure_supervisor(folder)
        time.sleep(_POLL_S)


def wait_until_reported(folder: ServiceFolder) -> None:
    """Return once a new supervisor has reported, or after ten seconds."""
    deadline = time.monotonic() + _REPORT_INTERVAL_S
    while not is_current(folder, read_observed(folder)) and time.monotonic() < deadline:
        time.sleep(_POLL_S)


def wait_until_gone(folder: ServiceFolder, watcher: Watcher) -> None:
    """Return once all processes of a deleted service have ended.

    Raises:
        UnavailableError: it takes too long.
    """
    deadline, next_start = time.monotonic() + _GONE_TIMEOUT_S, 0.0
    wake_supervisor(folder)
    # A supervisor removes its socket when it has ended everything: only then nothing is left.
    while (watched := is_supervised(folder)) or folder.socket.exists():
        watcher.report_events()
        now = time.monotonic()
        if now > deadline:
            raise UnavailableError(
                f"The service {folder.path.name!r} did not stop within {_GONE_TIMEOUT_S:.0f} s. Try again: scanflow "
                f"delete {folder.path.name}"
            )
        if not watched and now >= next_start:
            start_supervisor(folder)  # it ends all processes, and then itself
            next_start = now + _START_S
        time.sleep(_POLL_S)
    watcher.report_events()


def _describe_failure(desired: DesiredState) -> str:
    assert desired.failed is not None
    reason = end_sentence(desired.failed.reason)
    if desired.hopeless:
        return f"The service {desired.name!r} could not be deployed: {reason} Its logs: scanflow logs {desired.name}"
    return f"The change of {desired.name!r} was reverted, and the previous version is still served: {reason}"
