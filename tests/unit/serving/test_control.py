"""The control socket of an instance, and how an instance starts and ends."""

from __future__ import annotations

import dataclasses
import json
import os
import select
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from scanflow.instance_messages import ControlMessage, Node, Revision, encode
from scanflow.processes import seqpacket
from tests.serving import Instance, infer_request, read_answer
from tests.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.processes

CODE = """
import pathlib
import time

class Model:
    factor = 2

    def predict(self, X, names=None):
        while X.flat[0] == -1 and not pathlib.Path(__file__).with_name("go on").exists():
            time.sleep(0.01)
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
    with Instance(tmp_path, CODE) as instance:
        yield instance


@pytest.fixture(scope="module")
def shared_instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    """For tests that leave it as it was."""
    with Instance(tmp_path_factory.mktemp("shared"), CODE) as instance:
        yield instance


def connect(instance: Instance) -> socket.socket:
    return socket.create_connection(("127.0.0.1", instance.port), timeout=PATIENCE_S)


def make_desired(instance: Instance, name: str, generation: int = 2) -> dict[str, object]:
    node = Node(name="model", implementation=f"model.py:{name}", file=str(instance.folder.parent / "model.py"))
    wanted = dataclasses.replace(instance.desired, generation=generation, revisions=(Revision(id=name, nodes=(node,)),))
    document: dict[str, object] = json.loads(encode(wanted))
    return document


def get_answer(sock: socket.socket) -> list[float]:
    sock.sendall(infer_request())
    status, _, body = read_answer(sock)
    assert status == 200, body
    document: list[float] = json.loads(body)["outputs"][0]["data"]
    return document


def test_a_new_revision_is_served_once_the_answer_is_there(instance: Instance) -> None:
    with connect(instance) as sock:
        assert get_answer(sock) == [2, 4]
        assert instance.ask("apply", make_desired(instance, "Triple")) == {"generation": 2}
        assert get_answer(sock) == [3, 6]
        assert instance.ask("state")["generation"] == 2


@pytest.mark.parametrize(("name", "words"), BAD)
def test_what_cannot_be_loaded_is_said_and_changes_nothing(shared_instance: Instance, name: str, words: str) -> None:
    with connect(shared_instance) as sock:
        assert words in shared_instance.ask("apply", make_desired(shared_instance, name))["error"]
        assert "`generation`" in shared_instance.ask("apply", {"generations": 2})["error"]
        assert get_answer(sock) == [2, 4]
        assert shared_instance.ask("state")["generation"] == 1


def test_an_instance_answers_on_a_lent_socket_until_it_is_taken_back(shared_instance: Instance) -> None:
    with socket.create_server(("127.0.0.1", 0)) as lent:
        shared_instance.ask("listen", fds=[lent.fileno()], key="primary")
        with socket.create_connection(lent.getsockname(), timeout=PATIENCE_S) as sock:
            assert get_answer(sock) == [2, 4]
            shared_instance.ask("ignore", key="primary")
            sock.sendall(infer_request())
            assert read_answer(sock)[1]["connection"] == "close"
        with socket.create_connection(lent.getsockname(), timeout=PATIENCE_S):
            assert select.select([lent], (), (), 0)[0], "nobody accepts"
        with connect(shared_instance) as sock:
            assert get_answer(sock) == [2, 4]


def test_a_lent_socket_is_left_when_its_lender_is_gone(shared_instance: Instance) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as lent,
        seqpacket.connect(shared_instance.folder / "control") as lender,
    ):
        seqpacket.send(lender, ControlMessage(kind="listen", key="primary"), [lent.fileno()])
        assert seqpacket.receive(lender) is not None
        with socket.create_connection(lent.getsockname(), timeout=PATIENCE_S) as sock:
            assert get_answer(sock) == [2, 4]
            lender.close()
            wait_until(lambda: last(sock), "the connection is to close")
    assert shared_instance.ask("state")["ready"]


def last(sock: socket.socket) -> bool:
    sock.sendall(infer_request())
    return read_answer(sock)[1].get("connection") == "close"


def test_every_peer_gets_the_replies_to_what_it_sent(shared_instance: Instance) -> None:
    with seqpacket.connect(shared_instance.folder / "control") as other:
        seqpacket.send(other, ControlMessage(kind="state", key="mine", body={"metrics": True}))
        assert shared_instance.ask("state")["generation"] == 1
        came = seqpacket.receive(other)
    assert came is not None
    assert came[0].key == "mine"
    assert ["scanflow_in_flight", {"service": "w"}, 0.0] in came[0].body["metrics"]


def test_who_accepts_for_a_service_answers_under_its_name(shared_instance: Instance) -> None:
    ask = infer_request().replace(b"/v2/models/w/", b"/v2/models/main/")
    with socket.create_server(("127.0.0.1", 0)) as lent:
        shared_instance.ask("listen", fds=[lent.fileno()], key="main")
        with socket.create_connection(lent.getsockname(), timeout=PATIENCE_S) as sock:
            sock.sendall(ask)
            assert read_answer(sock)[0] == 200
        shared_instance.ask("ignore", key="main")


@pytest.mark.parametrize(("kind", "with_file"), [("listen", False), ("listen", True), ("reply", False)])
def test_a_message_that_makes_no_sense_gets_an_error(shared_instance: Instance, kind: str, with_file: bool) -> None:
    with (shared_instance.folder / "instance.json").open("rb") as file:
        assert shared_instance.ask(kind, fds=[file.fileno()] if with_file else [])["error"]
    with connect(shared_instance) as sock:
        assert get_answer(sock) == [2, 4]


@pytest.mark.parametrize("signalled", [False, True])
def test_a_draining_instance_answers_what_it_has_read_and_says_close(
    instance: Instance, tmp_path: Path, signalled: bool
) -> None:
    with connect(instance) as busy, connect(instance) as slow, connect(instance) as idle:
        assert get_answer(idle) == [2, 4]
        busy.sendall(infer_request([-1]))
        slow.sendall(infer_request()[:30])
        wait_until(lambda: instance.ask("state")["in_flight"] == 1, "a request runs")
        wait_until(lambda: instance.ask("state")["connections"] == 3, "all are there")
        if signalled:
            instance.process.terminate()
            wait_until(lambda: instance.ask("state")["draining"], "it drains")
        else:
            instance.ask("drain")
        slow.sendall(infer_request()[30:])
        (tmp_path / "go on").touch()
        for sock in (busy, slow):
            status, headers, _ = read_answer(sock)
            assert (status, headers["connection"], sock.recv(1)) == (200, "close", b"")
        assert idle.recv(1) == b""
        assert instance.process.wait(PATIENCE_S) == 0


def test_an_instance_that_cannot_start_says_why_and_that_trying_is_in_vain(tmp_path: Path) -> None:
    instance = Instance(tmp_path, CODE, implementation="model.py:Broken")
    try:
        assert instance.process.wait(PATIENCE_S) == 78, instance.log()
        assert "no such weights" in json.loads((instance.folder / "failure.json").read_text())["error"]
    finally:
        instance.close()


def test_thread_variables_and_cpus_are_as_set_also_deep_in_the_file_system(tmp_path: Path) -> None:
    code = """
import os
class Model:
    def predict(self, X, names=None):
        return [[float(os.environ["OMP_NUM_THREADS"]), *os.sched_getaffinity(0)]]
"""
    cpu = min(os.sched_getaffinity(0))
    deep = tmp_path.joinpath(*["a-folder-with-a-long-name"] * 5)
    with Instance(deep, code, threads={"OMP_NUM_THREADS": "7"}, cpus=(cpu,)) as instance, connect(instance) as sock:
        assert get_answer(sock) == [7, cpu]
        assert instance.ask("state")["cpus"] == [cpu]


def test_with_cpumempin_each_thread_that_computes_has_a_cpu_of_its_own(tmp_path: Path) -> None:
    cpus = tuple(sorted(os.sched_getaffinity(0)))
    code = """
import ctypes, os, threading
class Model:
    def load(self):  # a library's pool, which is no thread of Python's
        self.ids = (ctypes.c_ulong * 2)()
        pause = ctypes.CDLL(None).pause
        for place in range(2):
            at = ctypes.byref(self.ids, place * ctypes.sizeof(ctypes.c_ulong))
            assert ctypes.CDLL(None).pthread_create(at, None, pause, None) == 0
    def predict(self, X, names=None):
        return X
"""
    with Instance(tmp_path, code, cpus=cpus, pin_threads=True) as instance:
        pinned = instance.ask("state")["pinned"]
        masks = [sorted(os.sched_getaffinity(int(tid))) for tid in pinned]
    assert len(pinned) == 3, "a worker and the pool"
    assert list(pinned.values()) == masks == [[cpus[place % len(cpus)]] for place in range(3)]
