"""What is left of an instance that was killed: each of its connections, with all that was read and not answered."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from scanflow_serving import keeper
from scanflow_serving.slots import ANSWERING, IDLE, LEAVING, RUNNING, Found, Table, counters
from tests.serving import Instance, infer_request, lives, read_answer
from tests.waiting import until

CODE = """
import os, signal, threading

class Model:
    def predict(self, X, names=None):
        match int(X.flat[0]):
            case -1:
                threading.Event().wait()
            case -2:
                os._exit(3)
            case -3:
                os.kill(os.getpid(), signal.SIGSEGV)
        return X * 2
"""


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[Instance]:
    with Instance(tmp_path, CODE) as made:
        yield made


def connect(instance: Instance) -> socket.socket:
    return socket.create_connection(("127.0.0.1", instance.port), timeout=30)


def until_running(instance: Instance) -> None:
    def runs() -> bool:
        state = instance.ask("state")
        return bool(state["in_flight"] == 1 and state["queue"] == 0)

    until(runs, "a component is at work")


def keeper_of(instance: Instance) -> psutil.Process:
    (found,) = psutil.Process(instance.process.pid).children()
    return found


def test_each_connection_of_a_killed_instance_is_given_with_how_far_it_had_come(instance: Instance) -> None:
    with connect(instance) as idle, connect(instance) as running, connect(instance) as begun, connect(instance) as new:
        idle.sendall(infer_request())
        assert read_answer(idle)[0] == 200
        running.sendall(infer_request([-1]) + b"GET / HT")
        begun.sendall(infer_request()[:40])
        until_running(instance)
        until(lambda: instance.ask("state")["connections"] == 4, "all are there")
        instance.kill()
        orphans = {sock.getpeername(): (message.body, read) for message, sock, read in instance.hear_orphans()}
        found = {name: orphans.pop(sock.getsockname()) for name, sock in
                 {"idle": idle, "running": running, "begun": begun, "new": new}.items()}  # fmt: skip
        assert not orphans
        assert {name: body["phase"] for name, (body, _) in found.items()} == {
            "idle": "idle",
            "running": "running",
            "begun": "waiting",
            "new": "idle",
        }
        assert {name: read for name, (_, read) in found.items()} == {
            "idle": b"",
            "running": infer_request([-1]) + b"GET / HT",
            "begun": infer_request()[:40],
            "new": b"",
        }
        assert all(body["whole"] and body["instance"] == "one" for body, _ in found.values())


@pytest.mark.parametrize("way", [-2, -3])
def test_an_instance_that_ends_by_itself_leaves_its_connections_too(instance: Instance, way: int) -> None:
    with connect(instance) as sock:
        sock.sendall(infer_request([way]))
        ((message, _, read),) = instance.hear_orphans()
        assert (message.body["phase"], read) == ("running", infer_request([way]))


def test_a_body_that_is_too_large_to_be_kept_is_said_to_be(instance: Instance) -> None:
    with connect(instance) as sock:
        sock.sendall(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9000000\r\n\r\n" + bytes(1_000_000))
        until(lambda: instance.ask("state")["connections"] == 1, "it is there")
        instance.kill()
        ((message, _, read),) = instance.hear_orphans()
        assert (message.body["phase"], message.body["whole"], read) == ("waiting", False, b"")


def test_a_connection_that_came_with_a_replayed_request_remembers_that(instance: Instance) -> None:
    ours, theirs = pair()
    with ours:
        ours.sendall(infer_request([-1]))
        with theirs, os.fdopen(keeper.memory_of(theirs.recv(4096))) as read_already:
            instance.ask("take", {"replays": 1}, fds=[theirs.fileno(), read_already.fileno()])
        until_running(instance)
        instance.kill()
        ((message, _, read),) = instance.hear_orphans()
        assert (message.body["replays"], read) == (1, infer_request([-1]))


def test_an_instance_that_is_drained_leaves_nothing(instance: Instance) -> None:
    keeps = keeper_of(instance)
    with connect(instance) as sock:
        sock.sendall(infer_request())
        read_answer(sock)
        instance.tell("drain")
        assert [message.kind for message, _, _ in instance.hear_all()] == ["give"]
        assert instance.process.wait(30) == 0
        until(lambda: not lives(keeps.pid), "its keeper is gone")
        assert instance.hear_orphans() == []


def test_connections_that_no_supervisor_takes_are_given_up(tmp_path: Path) -> None:
    table = Table(slots=1)
    ours, theirs = pair()
    with ours, theirs:
        table.take().open(theirs, 0)
        assert keeper.give_away(table, supervisor=tmp_path / "nobody", instance="one", patience_s=0.0) == 0


def test_the_keeper_is_small_out_of_the_group_and_deaf_to_what_ends_the_instance(instance: Instance) -> None:
    keeps = keeper_of(instance)
    assert os.getpgid(keeps.pid) == keeps.pid != os.getpgid(instance.process.pid)
    assert keeps.name() == "scanflow-keeper"
    keeps.send_signal(signal.SIGTERM)
    private = re.findall(r"Private_\w+:\s+(\d+) kB", Path(f"/proc/{keeps.pid}/smaps_rollup").read_text())
    assert sum(map(int, private)) < 12_000
    assert keeps.is_running()


def test_a_component_that_waits_for_any_child_does_not_see_the_keeper(tmp_path: Path) -> None:
    code = f"""
import os, sys
sys.path[:0] = {sys.path!r}
from scanflow_serving import keeper
from scanflow_serving.slots import Table
pid = keeper.start(Table(slots=2), supervisor={str(tmp_path / "none")!r}, instance="one")
assert pid
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    print("none", flush=True)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == ("none\n", "")


# -- what the table says of a connection


def pair() -> tuple[socket.socket, socket.socket]:
    """Return both ends of a TCP connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname(), timeout=30)
        theirs, _ = listener.accept()
    return ours, theirs


def test_the_kernel_counts_what_is_read_and_written() -> None:
    ours, theirs = pair()
    with ours, theirs:
        assert counters(theirs) == (0, 0)
        ours.sendall(b"x" * 100)
        theirs.recv(60)
        theirs.sendall(b"y" * 30)
        assert counters(theirs) == (60, 30)
        ours.shutdown(socket.SHUT_WR)
        assert counters(theirs) == (60, 30)
        while theirs.recv(60):
            pass
        assert counters(theirs) == (100, 30)


@pytest.mark.parametrize(
    ("written", "found"),
    [
        (b"", Found(RUNNING, 1, b"one|two|")),
        (b"ans", Found(ANSWERING, 1, b"one|two|")),
        (b"answer", Found(1, 0, b"two|")),
    ],
)
def test_an_answer_that_was_cut_off_is_told_from_one_that_was_not(written: bytes, found: Found) -> None:
    table = Table(slots=1)
    ours, theirs = pair()
    with ours, theirs:
        slot = table.take()
        slot.open(theirs, 0, replays=1)
        ours.sendall(b"one|two|")
        until(lambda: theirs.recv(8, socket.MSG_PEEK) == b"one|two|", "it came")
        theirs.recv_into(slot.area[:8])
        slot.answering(4, 0, 6)
        theirs.sendall(written)
        assert table.found(0, theirs) == found


@pytest.mark.parametrize(
    ("phase", "found"), [(LEAVING, None), (IDLE, Found(IDLE, 0, b"")), (RUNNING, Found(0, 0, b""))]
)
def test_a_connection_that_is_given_away_is_not_given_twice(phase: int, found: Found | None) -> None:
    table = Table(slots=1)
    ours, theirs = pair()
    with ours, theirs:
        slot = table.take()
        slot.open(theirs, 0)
        slot.phase = phase
        assert table.found(0, theirs) == found


def test_bytes_that_were_read_and_never_seen_by_the_program_are_found() -> None:
    table = Table(slots=1)
    ours, theirs = pair()
    with ours, theirs:
        slot = table.take()
        slot.open(theirs, 0)
        ours.sendall(b"request")
        until(lambda: theirs.recv(8, socket.MSG_PEEK) == b"request", "it came")
        theirs.recv_into(slot.area)  # and here the process is killed
        assert table.found(0, theirs) == Found(1, 0, b"request")
