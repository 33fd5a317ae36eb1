"""A program with secrets: its output is masked, its end is its own, and its arguments say nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from scanflow.processes.masked_process import run_masked
from tests.waiting import patient, wait_until

SECRET = "canary-secret-1"

WRAPPER = """
import json, os, sys
from scanflow.processes.masked_process import end_as, run_masked
given = json.loads(sys.stdin.read())
end_as(run_masked(given["argv"], dict(os.environ), given["secrets"], sent=given.get("sent")))
"""


def wrap(program: str, secrets: list[str] | None = None, sent: object = None) -> subprocess.CompletedProcess[bytes]:
    fields = {"argv": [sys.executable, "-c", program], "secrets": secrets or [SECRET], "sent": sent}
    return subprocess.run(
        [sys.executable, "-c", WRAPPER],
        input=json.dumps(fields).encode(),
        capture_output=True,
        timeout=patient(60),
        check=False,
    )


def test_a_secret_is_masked_in_both_streams_however_it_is_written() -> None:
    program = f"""
import os, sys, time
os.write(1, b"a {SECRET[:5]}"); os.write(1, b"{SECRET[5:]} b\\n")
os.write(2, b"{SECRET}")
print(repr("{SECRET}"), "{SECRET}{SECRET}")
"""
    ended = wrap(program)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"a *** b\n'***' ******\n", b"***")


@pytest.mark.parametrize("secret", ["20260101", "pin1", "true", "line one\nline two", 'quoted "\\é'])
def test_a_declared_secret_is_masked_whatever_it_looks_like(secret: str) -> None:
    ended = wrap(f"print('x', {secret!r}); print({json.dumps(secret)!r})", [secret])
    shown = ended.stdout.decode()
    assert all(part not in shown for part in [secret, json.dumps(secret)[1:-1], *secret.split("\n")])
    assert shown.startswith("x ***")


def test_what_is_masked_of_an_address_is_its_password_too() -> None:
    ended = wrap("print('hunter22 refused')", ["postgresql://ada:hunter22@host/db"])
    assert ended.stdout == b"*** refused\n"


def test_basic_authorization_is_masked_too() -> None:
    program = "import base64; print(*(base64.b64encode(text).decode() for text in (b'ada:hunter22', b'hunter23')))"
    assert wrap(program, ["http://ada:hunter22@host", "hunter23"]).stdout == b"*** ***\n"


@pytest.mark.parametrize("end", ["sys.exit(7)", "os.kill(os.getpid(), 9)", "os.kill(os.getpid(), 15)", "os.abort()"])
def test_the_end_is_the_programs_own(end: str) -> None:
    program = f"import os, sys; print('all of it', flush=True); {end}"
    alone = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=patient(60), check=False)
    ended = wrap(program)
    assert (ended.returncode, ended.stdout) == (alone.returncode, b"all of it\n")


def test_what_is_sent_is_in_no_argument(tmp_path: Path) -> None:
    program = """
import json, os
given = json.load(os.fdopen(int(os.environ["SCANFLOW_SECRETS_FD"])))
print(len(given["key"]))
print(any(given["key"][:99].encode() in open(f"/proc/{pid}/cmdline", "rb").read() for pid in ("self", os.getppid())))
"""
    ended = wrap(program, sent={"key": "k" * 200_000})  # more than a pipe holds
    assert ended.stdout == b"200000\nFalse\n"


def test_a_program_may_leave_what_it_was_sent_unread() -> None:
    assert wrap("print('done')", sent={"key": "k" * 200_000}).returncode == 0


def test_a_program_that_left_another_process_behind_has_ended() -> None:
    ended = wrap("import subprocess; print(subprocess.Popen(['sleep', '600']).pid)")
    os.kill(int(ended.stdout), signal.SIGKILL)  # it is there still, and held the streams open
    assert ended.returncode == 0


def test_a_signal_to_the_group_ends_the_program_which_may_still_speak(tmp_path: Path) -> None:
    program = f"""
import pathlib, signal, sys, time
def end(*_):
    print("ended by {SECRET}", flush=True)
    sys.exit(3)
signal.signal(signal.SIGTERM, end)
pathlib.Path({str(tmp_path / "ready")!r}).touch()
while True: time.sleep(1)
"""
    fields = {"argv": [sys.executable, "-c", program], "secrets": [SECRET]}
    process = subprocess.Popen(
        [sys.executable, "-c", WRAPPER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps(fields).encode())
    process.stdin.close()
    wait_until((tmp_path / "ready").exists, "the program runs")
    os.killpg(process.pid, signal.SIGTERM)
    assert process.stdout is not None
    assert (process.stdout.read(), process.wait(patient(60))) == (b"ended by ***\n", 3)
    process.stdout.close()


def test_the_output_goes_where_it_is_sent(tmp_path: Path) -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    try:
        with (tmp_path / "log").open("wb") as log:
            code = run_masked(["echo", SECRET], os.environ, [SECRET], outputs=(log.fileno(), log.fileno()))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert (code, (tmp_path / "log").read_bytes()) == (0, b"***\n")


FORK = """
import os, sys
from scanflow.processes.masked_process import mask_from_here
mask_from_here(["canary-secret-1"], lambda: 5 if "refuse" in sys.argv else 0)
"""


def fork(program: str, *words: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-c", FORK + program, *words]
    return subprocess.run(command, capture_output=True, timeout=patient(60), check=False)


@pytest.mark.parametrize(
    "end", ["sys.exit(7)", "os.kill(os.getpid(), 9)", "os.abort()", "raise KeyError('canary-secret-1')"]
)
def test_a_process_that_masks_itself_ends_as_it_would(end: str) -> None:
    ended = fork(f"print('canary-secret-1, all of it', flush=True); os.system('echo canary-secret-1 >&2'); {end}")
    alone = subprocess.run([sys.executable, "-c", f"import os, sys; {end}"], capture_output=True, check=False)
    assert (ended.returncode, ended.stdout) == (alone.returncode, b"***, all of it\n")
    assert (SECRET.encode() in ended.stderr, ended.stderr.startswith(b"***\n")) == (False, True)


def test_a_process_that_masks_itself_is_checked_at_its_end() -> None:
    assert [fork("", "refuse").returncode, fork("", "fine").returncode] == [5, 0]
    assert fork("sys.exit(2)", "refuse").returncode == 2, "a failure of its own is told as it is"
