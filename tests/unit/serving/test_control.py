"""What a supervisor says to an instance and gets from it, one that is replaced meanwhile included."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from scanflow.backends.local import seqpacket
from scanflow.wire import Exchange, Node, Revision, encode
from tests.serving import Instance, infer_request, read_answer
from tests.waiting import until

CODE = """
import threading

class Model:
    factor = 2

    def predict(self, X, names=None):
        if X.flat[0] == -1:
            threading.Event().wait(1)
        return X * self.factor

class Triple(Model):
    factor = 3

class Broken(Model):
    def load(self):
        raise OSError("no such weights")
"""

BAD = [("Broken", "no such weights"), ("Missing", "Missing")]


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[Instance]:
    with Instance(tmp_path, CODE) as made:
        yield made


def connect(instance: Instance) -> socket.socket:
    return socket.create_connection(("127.0.0.1", instance.port), timeout=30)


def desired(instance: Instance, name: str, generation: int = 2) -> dict[str, object]:
    node = Node(name="model", implementation=f"model.py:{name}", file=str(instance.folder.parent / "model.py"))
    wanted = dataclasses.replace(instance.desired, generation=generation, revisions=(Revision(id=name, nodes=(node,)),))
    found: dict[str, object] = json.loads(encode(wanted))
    return found


def answer_of(sock: socket.socket) -> list[float]:
    sock.sendall(infer_request())
    status, _, body = read_answer(sock)
    assert status == 200, body
    found: list[float] = json.loads(body)["outputs"][0]["data"]
    return found


def test_a_new_revision_is_served_once_the_answer_is_there(instance: Instance) -> None:
    with connect(instance) as sock:
        assert answer_of(sock) == [2, 4]
        assert instance.ask("apply", desired(instance, "Triple")) == {"generation": 2}
        assert answer_of(sock) == [3, 6]
        assert instance.ask("state")["generation"] == 2


@pytest.mark.parametrize(("name", "words"), BAD)
def test_what_cannot_be_loaded_is_said_and_changes_nothing(instance: Instance, name: str, words: str) -> None:
    with connect(instance) as sock:
        assert words in instance.ask("apply", desired(instance, name))["error"]
        assert "no field" in instance.ask("apply", {"generations": 2})["error"]
        assert answer_of(sock) == [2, 4]
        assert instance.ask("state")["generation"] == 1


def test_the_state_tells_what_is_listened_on_and_gives_a_copy(instance: Instance) -> None:
    assert instance.ask("state")["listeners"] == ["main"]
    instance.tell("state", {"listener": "main"}, key="copy")
    assert instance._control is not None
    came = seqpacket.receive(instance._control)
    assert came is not None
    message, (fd,) = came
    assert message.body == {"listener": "main"}
    with socket.socket(fileno=fd) as copy:
        assert copy.getsockname() == instance.listener.getsockname()


def test_a_listener_goes_away_and_comes_back(instance: Instance) -> None:
    instance.ask("ignore", key="main")
    with connect(instance) as sock:
        sock.sendall(infer_request())
        instance.ask("listen", fds=[instance.listener.fileno()], key="main")
        assert read_answer(sock)[0] == 200


@pytest.mark.parametrize(
    ("kind", "body", "with_file"),
    [("listen", {}, False), ("listen", {}, True), ("take", {}, False), ("take", {}, True), ("reply", {}, False)],
)
def test_what_makes_no_sense_is_answered_with_an_error(
    instance: Instance, kind: str, body: dict[str, object], with_file: bool
) -> None:
    with (instance.folder / "instance.json").open("rb") as file:
        assert instance.ask(kind, body, fds=[file.fileno()] if with_file else [])["error"]
    with connect(instance) as sock:
        assert answer_of(sock) == [2, 4]


def test_a_supervisor_that_was_replaced_is_heard_and_given_to(instance: Instance) -> None:
    with connect(instance) as sock:
        assert answer_of(sock) == [2, 4]
        assert instance._control is not None
        instance._control.close()
        instance._control = None
        assert answer_of(sock) == [2, 4]
        instance.connect()
        instance.tell("drain")
        ((message, _, _),) = instance.hear_all()
        assert message.kind == "give"
        assert instance.process.wait(30) == 0


def test_a_drained_instance_answers_what_is_begun_and_gives_each_connection(instance: Instance) -> None:
    with connect(instance) as busy, connect(instance) as slow:
        busy.sendall(infer_request([-1]) + infer_request())
        slow.sendall(infer_request()[:30])
        until(lambda: instance.ask("state")["in_flight"] == 1, "a request runs")
        until(lambda: instance.ask("state")["connections"] == 2, "both are there")
        instance.tell("drain")
        given = {sock.getpeername(): read + unread(sock) for _, sock, read in instance.hear_all()}
        assert given == {busy.getsockname(): infer_request(), slow.getsockname(): infer_request()[:30]}
        assert read_answer(busy)[0] == 200
        assert instance.process.wait(30) == 0


def unread(sock: socket.socket) -> bytes:
    """Return what came on a connection that was given and nobody has read."""
    sock.setblocking(False)
    try:
        return sock.recv(65536)
    except BlockingIOError:
        return b""


def test_an_instance_asked_to_end_by_a_signal_drains_too(instance: Instance) -> None:
    with connect(instance) as sock:
        assert answer_of(sock) == [2, 4]
        instance.process.terminate()
        assert len(instance.hear_all()) == 1
        assert instance.process.wait(30) == 0


def test_an_old_connection_is_given_and_may_come_back(tmp_path: Path) -> None:
    from scanflow.wire import Limits

    with Instance(tmp_path, CODE, limits=Limits(connection_age_s=0.01)) as instance, connect(instance) as sock:
        for _ in range(3):
            assert answer_of(sock) == [2, 4]
            instance.hear_given(1)
            instance.take(instance.given.pop())
        assert answer_of(sock) == [2, 4]


def test_connections_that_nobody_took_stay(instance: Instance) -> None:
    """The supervisor ends with a full queue: what it never read comes back."""
    with connect(instance) as sock:
        assert answer_of(sock) == [2, 4]
        for _ in range(3000):
            try:
                assert instance._control is not None
                instance._control.settimeout(0)
                seqpacket.send(instance._control, Exchange(kind="state", key="1"))
            except BlockingIOError:
                break
        assert instance._control is not None
        instance._control.close()
        instance._control = None
        assert answer_of(sock) == [2, 4]


@pytest.mark.parametrize(("name", "words"), BAD)
def test_an_instance_that_cannot_start_says_why_and_that_trying_is_in_vain(
    tmp_path: Path, name: str, words: str
) -> None:
    instance = Instance(tmp_path, CODE, implementation=f"model.py:{name}")
    try:
        assert instance.process.wait(60) == 78, instance.log()
        assert words in json.loads((instance.folder / "failure.json").read_text())["error"]
    finally:
        instance.close()


def test_the_control_socket_may_lie_deep_in_the_file_system(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["a-folder-with-a-long-name"] * 5)
    with Instance(deep, CODE) as instance, connect(instance) as sock:
        assert answer_of(sock) == [2, 4]


def test_thread_variables_and_cpus_are_as_told(tmp_path: Path) -> None:
    code = """
import os
class Model:
    def predict(self, X, names=None):
        return [[float(os.environ["OMP_NUM_THREADS"]), *os.sched_getaffinity(0)]]
"""
    cpu = min(os.sched_getaffinity(0))
    with (
        Instance(tmp_path, code, threads={"OMP_NUM_THREADS": "7"}, cpus=(cpu,)) as instance,
        connect(instance) as sock,
    ):
        assert answer_of(sock) == [7, cpu]
        assert instance.ask("state")["cpus"] == [cpu]
