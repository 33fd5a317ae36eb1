"""The process between a runner and a step: it outlives the runner and writes on disk how the step went.

It is run as a file with ``python -IS``, so it imports only the standard library, and little of that. One *spawner* a
runner reads the names of attempt folders from its standard input and forks a shim for each: a fork of this small
process costs a millisecond where a new interpreter costs ten. The spawner ends with its runner; the shims, each in a
session of its own, do not.

With ``--warm`` the spawner first imports what function steps need, and such a step is a fork that calls its function
rather than a new interpreter that imports all of it again: tens of milliseconds instead of hundreds.

An attempt folder, and who writes what in it:

==============  ========  =====================================================================================
``spec.json``   runner    the command (or a function step's request), working folder, environment, time limit
``alive``       runner    a FIFO. The shim holds it open, so its reader sees at once when the shim is gone
``claim``       either    made by exactly one of them: by the shim before it does anything, or by a later runner
                          to say that this attempt will never start
``started``     shim      the step's process id and when it began, written before the step's first instruction
``exit``        shim      exit code, signal, reason, resources used. Its space is reserved at the start, so that a
                          disk that fills up meanwhile does not lose it
``stdout.log``  step      from the first byte
``stderr.log``  step      from the first byte
==============  ========  =====================================================================================
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing would cost more than all the rest
    from collections.abc import Callable
    from typing import Any

GRACE_S = 5.0  # between asking a step to end (SIGTERM) and ending it (SIGKILL)
RECORD_BYTES = 1024  # reserved for the exit record, which is about 200 bytes

ENCODING = "utf-8"


class _Watch:
    """Why the step is being ended, if it is, and by whom its end is enforced."""

    def __init__(self, grace_s: float) -> None:
        self.pid = 0
        self.reason = ""
        self.grace_s = grace_s

    def on_stop(self, _signal: int, _frame: object) -> None:
        self._end("stopped")

    def on_alarm(self, _signal: int, _frame: object) -> None:
        if self.reason:
            signal_group(self.pid, signal.SIGKILL)
        else:
            self._end("timeout")

    def _end(self, reason: str) -> None:
        self.reason = self.reason or reason
        if self.pid:
            signal_group(self.pid, signal.SIGTERM)
            signal.setitimer(signal.ITIMER_REAL, self.grace_s)


def spawner() -> str | None:
    """Fork a shim for each attempt folder named on standard input, until it ends.

    Returns the request of a function step, in the process of that step only; otherwise None, at the end.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the runner, which decides
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # shims are not waited for: their record is on disk
    for line in sys.stdin:  # a JSON string a line, since a folder's name may hold a line's end
        if os.fork() == 0:
            folder = json.loads(line)
            try:
                request = shim(folder)
            except BaseException as error:  # noqa: BLE001  its own terminal is gone; the attempt's folder is the place
                _write(f"{folder}/shim.error", {"error": f"{type(error).__name__}: {error}"})
                os._exit(1)
            if request is None:
                os._exit(0)
            return request
    return None


def shim(folder: str) -> str | None:
    """Run one attempt and record how it went. In the process of a function step, return its request instead."""
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    alive = os.open(f"{folder}/alive", os.O_RDWR)
    if not claim(folder):
        os.write(alive, b"s")  # who waits for it hears that it is over, though it never began
        return None
    _detach()
    with open(f"{folder}/spec.json", encoding=ENCODING) as file:
        spec = json.load(file)
    record = os.open(f"{folder}/exit.part", os.O_RDWR | os.O_CREAT, 0o644)
    os.write(record, b" " * RECORD_BYTES)
    watch = _Watch(spec.get("grace_s", GRACE_S))
    signal.signal(signal.SIGTERM, watch.on_stop)
    signal.signal(signal.SIGALRM, watch.on_alarm)
    gate, open_gate = os.pipe()
    began, clock = time.time(), time.monotonic()
    pid = os.fork()
    if pid == 0:
        os.close(open_gate)
        return _become_step(folder, spec, gate)
    os.close(gate)
    _write(f"{folder}/started", {"pid": pid, "shim": os.getpid(), "began": began, "birth": birth(pid)})
    watch.pid = pid
    os.write(alive, b"s")
    os.write(open_gate, b"g")
    os.close(open_gate)
    if watch.reason:  # asked to stop before there was anything to stop
        watch.on_stop(0, None)
    elif spec.get("timeout_s"):
        signal.setitimer(signal.ITIMER_REAL, spec["timeout_s"])
    _, status, used = os.wait4(pid, 0)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal_group(pid, signal.SIGKILL)  # what the step left running ends with it, as in a container
    text = json.dumps(
        {
            "exit_code": os.WEXITSTATUS(status) if os.WIFEXITED(status) else None,
            "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else None,
            "reason": watch.reason or None,
            "began": began,
            "seconds": time.monotonic() - clock,
            "user_s": used.ru_utime,
            "system_s": used.ru_stime,
            "max_rss_bytes": used.ru_maxrss * (1 if sys.platform == "darwin" else 1024),
        }
    )
    os.pwrite(record, text.encode(ENCODING), 0)
    os.rename(f"{folder}/exit.part", f"{folder}/exit")
    return None


def claim(folder: str) -> bool:
    """Say whether this call is the one that decides what becomes of the attempt; every other one gets False."""
    try:
        os.close(os.open(f"{folder}/claim", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
    except FileExistsError:
        return False
    return True


def birth(pid: int) -> str:
    """Return when a process began, in the kernel's own clock: with its id, this names one process for ever."""
    try:
        with open(f"/proc/{pid}/stat", encoding=ENCODING) as file:
            return file.read().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def signal_group(pid: int, number: int) -> None:
    """Signal a step and all it started; nothing happens if none of them is left."""
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def _become_step(folder: str, spec: dict[str, Any], gate: int) -> str:
    """Become the step, once the shim has written down that it exists. Returns only for a function step: its request."""
    try:
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGALRM, signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        for name, target in (("stdout.log", 1), ("stderr.log", 2)):
            os.dup2(os.open(f"{folder}/{name}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), target)
        if not os.read(gate, 1):  # the shim is gone: nobody would know of this step
            os._exit(126)
        os.chdir(spec["cwd"])
        if spec["request"]:
            os.environ.update(spec["env"])
            return str(spec["request"])
        os.execvpe(spec["argv"][0], spec["argv"], {**os.environ, **spec["env"]})
    except BaseException as error:  # noqa: BLE001  a forked child must never return into the shim's code
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
    os._exit(127)


def _detach() -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for target in (0, 1, 2):
        os.dup2(null, target)


def _write(path: str, record: dict[str, Any]) -> None:
    with open(f"{path}.part", "w", encoding=ENCODING) as file:
        json.dump(record, file)
    os.rename(f"{path}.part", path)


def _warm_up(path: list[str]) -> Callable[[str], None]:
    """Import what function steps need, from where the runner imports it, and return what runs one."""
    sys.path[:] = path
    import gc

    from scanflow.backends.local.preloaded import main

    gc.freeze()  # so that a collection in a fork does not copy all that was imported
    return main


def _main(arguments: list[str]) -> None:
    run = _warm_up(arguments[1:]) if arguments[:1] == ["--warm"] else None
    request = spawner()
    if request is not None and run is not None:
        _call(run, request)


def _call(run: Callable[[str], None], request: str) -> None:
    """Run a function step to the end of its process, as the interpreter would, but for taking every module apart.

    That last part took 10 of a trivial step's 20 milliseconds; ``multiprocessing`` leaves it out of its forks likewise.
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
    except BaseException as error:  # noqa: BLE001  what the interpreter does with what nobody caught
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads that are not daemons
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code & 0xFF)


if __name__ == "__main__":
    _main(sys.argv[1:])
