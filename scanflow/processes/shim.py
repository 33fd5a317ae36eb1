"""The process that starts, watches and records attempts, and outlives their runner.

One shim serves any number of attempts: those of a run, or the supervisor and the instances of a service. It is run as a
file with ``python -IS``, so it imports only the standard library, and little of that. It reads the names of attempt
folders from its request channel (one JSON text a line) and ends when the channel is closed and nothing runs any more.

``shim.py``
    requests come from standard input.
``shim.py --warm PATH…``
    the same, with what function steps need imported first: such a step is a fork that calls its function rather than a
    new interpreter that imports all of it again, tens of milliseconds instead of hundreds.

An attempt folder, and who writes what in it:

==============  ========  =====================================================================================
``spec.json``   runner    the command (or a function step's request), working folder, environment, time limit
``alive``       runner    a FIFO. The shim holds it open while the attempt runs: its reader sees at once when it ends
``claim``       either    made by exactly one of them: by the shim before it does anything, or by a later runner
                          to say that this attempt will never start
``started``     shim      the process ids and when they began, written before the attempt's first instruction
``stop``        anyone    the attempt is to be stopped; SIGUSR1 makes the shim look for it
``exit``        shim      exit code, signal, reason, resources used. Its space is reserved at the start, so that a
                          disk that fills up meanwhile does not lose it
``stdout.log``  attempt   from the first byte
``stderr.log``  attempt   from the first byte
==============  ========  =====================================================================================
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing would cost more than all the rest
    from collections.abc import Callable
    from typing import Any

GRACE_S = 5.0  # between asking an attempt to end (SIGTERM) and ending it (SIGKILL)
RECORD_BYTES = 1024  # reserved for the exit record, which is about 200 bytes
RESTART_S, RESTART_MAX_S, HEALTHY_S = 0.1, 30.0, 60.0  # pauses before restarts; after so long a pause is forgotten
STARTED_S = 5.0  # a program that ends by itself within this time of its first start could not start
FINAL_CODES = (0, 2)  # of a program that has ended, or must not be started again as it is: wrong usage

ENCODING = "utf-8"

_RESET = ("SIGTERM", "SIGHUP", "SIGINT", "SIGPIPE", "SIGCHLD", "SIGUSR1")


class Attempt:
    """One running attempt."""

    def __init__(self, folder: str, spec: dict[str, Any], alive: int, record: int) -> None:
        self.folder, self.spec, self.alive, self.record = folder, spec, alive, record
        self.grace_s = float(spec.get("grace_s", GRACE_S))
        self.began, self.clock = time.time(), time.monotonic()
        self.pid = 0
        self.reason = ""
        self.due = self.clock + spec["timeout_s"] if spec.get("timeout_s") else None
        self.restarts, self.restart_at, self.pause_s = 0, 0.0, 0.0
        self.last: Any = None
        """Status and use of its last process, while it waits for the next one."""

    def end(self, reason: str) -> None:
        if not self.reason:
            self.reason, self.due = reason, time.monotonic() + self.grace_s
            signal_group(self.pid, signal.SIGTERM)

    def enforce(self, now: float) -> None:
        """Enforce the time limit, or the end of the grace period."""
        if self.due is None or now < self.due:
            return
        if self.reason:
            self.due = None
            signal_group(self.pid, signal.SIGKILL)
        else:
            self.end("timeout")

    def plan_restart(self, status: int, used: Any) -> bool:
        """Decide whether another process of it is started, and when; the folder of a home that is gone is left."""
        if not self.spec.get("restart") or self.reason or not os.path.exists(self.folder):
            return False
        now = time.monotonic()
        lived_s = now - self.clock
        if os.WIFEXITED(status):
            failed_to_start = not self.restarts and lived_s < STARTED_S
            if os.WEXITSTATUS(status) in FINAL_CODES or failed_to_start:
                return False
        signal_group(self.pid, signal.SIGKILL)
        if lived_s >= HEALTHY_S:
            self.pause_s = 0.0
        self.restarts, self.restart_at, self.last = self.restarts + 1, now + self.pause_s, (status, used)
        self.pause_s = min(max(RESTART_S, 2 * self.pause_s), RESTART_MAX_S)
        return True

    def record_exit(self, status: int, used: Any) -> None:
        """Record the attempt's exit."""
        signal_group(self.pid, signal.SIGKILL)  # its children end with it, as in a container
        text = json.dumps(
            {
                "exit_code": os.WEXITSTATUS(status) if os.WIFEXITED(status) else None,
                "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else None,
                "reason": self.reason or None,
                "began": self.began,
                "seconds": time.monotonic() - self.clock,
                "user_s": used.ru_utime,
                "system_s": used.ru_stime,
                "max_rss_bytes": used.ru_maxrss * (1 if sys.platform == "darwin" else 1024),
            }
        )
        try:
            os.pwrite(self.record, text.encode(ENCODING), 0)
            os.rename(f"{self.folder}/exit.part", f"{self.folder}/exit")
        except OSError:
            pass  # the folder is gone: closing `alive` is the only report
        self.close()

    def close(self) -> None:
        os.close(self.record)
        os.close(self.alive)


class Shim:
    """The event loop of one request channel and its attempts."""

    def __init__(self, requests: int) -> None:
        self.requests: int | None = requests
        self._unread = b""
        self._attempts: dict[int, Attempt] = {}
        self._waiting: list[Attempt] = []
        self._birth = read_start_time(os.getpid())
        self._stop = self._look = False
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the runner, which decides
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGUSR1, self._on_signal)
        signal.signal(signal.SIGCHLD, self._on_signal)
        self._woken, wake = os.pipe()
        for end in (self._woken, wake):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)

    def serve(self) -> str | None:
        """Serve requests until the channel is closed and nothing runs any more.

        Returns the request of a function step, in the process of that step only; otherwise None, at the end.
        """
        while self.busy:
            request = self._read() if self._wait() else None
            if request is not None:
                return request
            self._reap()
            self._act(time.monotonic())
        return None

    @property
    def busy(self) -> bool:
        return self.requests is not None or bool(self._attempts) or bool(self._waiting)

    def compute_due(self) -> float | None:
        due = [attempt.due for attempt in self._attempts.values() if attempt.due is not None]
        return min([*due, *(attempt.restart_at for attempt in self._waiting)], default=None)

    def receive(self) -> bytes:
        assert self.requests is not None
        return os.read(self.requests, 65536)

    def close_channel(self) -> None:
        self.requests = None

    def handle_child_exit(self, pid: int, status: int, used: Any) -> None:
        if attempt := self._attempts.pop(pid, None):
            if attempt.plan_restart(status, used):
                self._waiting.append(attempt)
            else:
                attempt.record_exit(status, used)

    def _wait(self) -> bool:
        poller = select.poll()
        poller.register(self._woken, select.POLLIN)
        if self.requests is not None:
            poller.register(self.requests, select.POLLIN)
        due = self.compute_due()
        events = poller.poll(None if due is None else max(0.0, due - time.monotonic()) * 1000 + 1)
        if any(fd == self._woken for fd, _ in events):
            os.read(self._woken, 4096)
        return any(fd == self.requests for fd, _ in events)

    def _read(self) -> str | None:
        data = self.receive()
        if not data:
            self.close_channel()
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:  # a JSON text a line, since a folder's name may hold a line's end
            request = self.handle_request(json.loads(line))
            if request is not None:
                return request
        return None

    def handle_request(self, request: Any) -> str | None:
        """Start the attempt of a folder; return its request, but only in the process of a function step."""
        try:
            return self._start(request)
        except Exception:  # noqa: BLE001  one attempt that cannot be started must not end the others
            return None

    def _start(self, folder: str) -> str | None:
        alive = os.open(f"{folder}/alive", os.O_RDWR)
        if not claim(folder):
            os.write(alive, b"s")  # its reader sees that it is over, though it never started
            os.close(alive)
            return None
        record = -1
        try:
            with open(f"{folder}/spec.json", encoding=ENCODING) as file:
                spec = json.load(file)
            record = os.open(f"{folder}/exit.part", os.O_RDWR | os.O_CREAT, 0o600)
            os.write(record, b" " * RECORD_BYTES)
            attempt = Attempt(folder, spec, alive, record)
            request = self._fork(attempt)
            if request is not None:
                return request
        except BaseException as error:
            _write_error(folder, error)
            os.write(alive, b"s")
            for fd in (record, alive):
                if fd >= 0:
                    os.close(fd)
            raise
        os.write(alive, b"s")
        if os.path.exists(f"{folder}/stop"):  # requested before there was a process
            attempt.end("stopped")
        return None

    def _fork(self, attempt: Attempt) -> str | None:
        """Start a process of an attempt; return a function step's request, in the process of that step only."""
        gate, open_gate = os.pipe()
        attempt.began, attempt.clock = time.time(), time.monotonic()
        pid = os.fork()
        if pid == 0:
            os.close(open_gate)
            return _become_step(attempt.folder, attempt.spec, gate)
        os.close(gate)
        try:
            write_record(
                f"{attempt.folder}/started",
                {
                    "pid": pid,
                    "birth": read_start_time(pid),
                    "began": attempt.began,
                    "shim": os.getpid(),
                    "shim_birth": self._birth,
                },
            )
            attempt.pid = pid
            self._attempts[pid] = attempt
            os.write(open_gate, b"g")
        finally:
            os.close(open_gate)
        return None

    def _start_again(self, attempt: Attempt) -> None:
        try:
            self._fork(attempt)
        except OSError:  # out of processes, files or space for now: its gate is closed, so that it never began
            attempt.restart_at = time.monotonic() + 1.0
            self._waiting.append(attempt)

    def _on_signal(self, number: int, _frame: object) -> None:
        self._stop = self._stop or number == signal.SIGTERM
        self._look = self._look or number == signal.SIGUSR1

    def _act(self, now: float) -> None:
        if self._stop or self._look:
            everything, self._stop, self._look = self._stop, False, False
            for attempt in self._attempts.values():
                if everything or os.path.exists(f"{attempt.folder}/stop"):
                    attempt.end("stopped")
            for attempt in [*self._waiting]:
                if everything or os.path.exists(f"{attempt.folder}/stop"):
                    self._waiting.remove(attempt)
                    attempt.reason = "stopped"
                    attempt.record_exit(*attempt.last)
        for attempt in [attempt for attempt in self._waiting if now >= attempt.restart_at]:
            self._waiting.remove(attempt)
            self._start_again(attempt)
        for attempt in self._attempts.values():
            attempt.enforce(now)

    def _reap(self) -> None:
        while True:
            try:
                pid, status, used = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self.handle_child_exit(pid, status, used)


def claim(folder: str) -> bool:
    """Claim the attempt; return True to exactly one caller, which decides whether it starts."""
    try:
        os.close(os.open(f"{folder}/claim", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        return False
    return True


def read_start_time(pid: int) -> str:
    """Return a process' start time in clock ticks: with its id, it identifies the process uniquely."""
    try:
        with open(f"/proc/{pid}/stat", encoding=ENCODING, errors="replace") as file:
            return file.read().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def signal_group(pid: int, number: int) -> None:
    """Signal a process group; nothing happens if it is gone."""
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def _become_step(folder: str, spec: dict[str, Any], gate: int) -> str:
    """Exec the step once the shim has recorded its start. Returns only for a function step: its request."""
    try:
        os.setsid()
        reset_signals()
        os.dup2(os.open(os.devnull, os.O_RDWR), 0)
        for name, target in (("stdout.log", 1), ("stderr.log", 2)):
            log = spec.get("log") or f"{folder}/{name}"
            os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), target)
        if not os.read(gate, 1):  # the shim is gone: this step would not be recorded
            os._exit(126)
        if cpus := spec.get("cpus"):
            os.sched_setaffinity(0, cpus)
        os.chdir(spec["cwd"])
        if spec["request"]:
            os.closerange(3, 65536)  # a fork inherits them all, also the FIFOs of other steps
            os.environ.update(spec["env"])
            return str(spec["request"])
        os.execvpe(spec["argv"][0], spec["argv"], {**os.environ, **spec["env"]})
    except BaseException as error:  # noqa: BLE001  a forked child must never return into the shim's code
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
    os._exit(127)


def reset_signals() -> None:
    signal.set_wakeup_fd(-1)
    for name in _RESET:
        signal.signal(getattr(signal, name), signal.SIG_DFL)


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def write_record(path: str, record: dict[str, Any]) -> None:
    try:
        with open(f"{path}.part", "w", encoding=ENCODING, opener=_open_private) as file:
            json.dump(record, file)
        os.rename(f"{path}.part", path)
    except OSError:
        try:
            os.unlink(f"{path}.part")
        except OSError:
            pass  # it was not even created
        raise


def _write_error(folder: str, error: BaseException) -> None:
    try:
        write_record(f"{folder}/shim.error", {"error": f"{type(error).__name__}: {error}"})
    except OSError:
        pass


def detach(*targets: int) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for target in targets:
        os.dup2(null, target)
    os.close(null)


def _warm_up(module: str, path: list[str]) -> Callable[[str], None]:
    """Import a module with the runner's path, and return its ``main``, which forks call with a request.

    The interpreter's own entries come first meanwhile: a user's file may be named as a module that is imported here.
    """
    own = sys.path[1:]
    sys.path[:] = sorted(path, key=lambda entry: entry not in own)
    import gc
    import importlib

    gc.disable()  # what is imported stays
    main: Callable[[str], None] = importlib.import_module(module).main
    sys.path[:] = path
    gc.enable()
    gc.freeze()  # so that a collection in a fork does not copy all that was imported
    return main


def _main(arguments: list[str]) -> None:
    if os.fork():  # detach from the runner, which either may outlive
        os._exit(0)
    run = _warm_up(arguments[1], arguments[2:]) if arguments[:1] == ["--warm"] else None
    requests = fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 3)
    detach(0, 2)  # standard output stays open: the runner sees by its end that the shim is gone
    request = Shim(requests).serve()
    if request is not None and run is not None:
        _call(run, request)


def _call(run: Callable[[str], None], request: str) -> None:
    """Run a function step to the end of its process, as the interpreter would, but without tearing down modules.

    The teardown took 10 of a trivial step's 20 milliseconds; ``multiprocessing`` skips it in its forks as well.
    """
    import atexit
    import threading

    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    code = 0
    try:
        run(request)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
        if error.code is not None and not isinstance(error.code, int):
            sys.stderr.write(f"{error.code}\n")
    except BaseException as error:  # noqa: BLE001  as the interpreter does with uncaught exceptions
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads that are not daemons
    atexit._run_exitfuncs()
    for stream in filter(None, (sys.stdout, sys.stderr)):  # a step may have set one to None
        stream.flush()
    os._exit(code & 0xFF)


if __name__ == "__main__":
    _main(sys.argv[1:])
