"""Callers that keep their connections while the instances behind them are killed and drained, one after the other."""

from __future__ import annotations

import itertools
import json
import os
import random
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.serving import Instance, Orphan, infer_request, read_answer

pytestmark = pytest.mark.slow

CODE = """
class Model:
    def predict(self, X, names=None):
        return X * 2
"""
CALLERS = 6
CHANGES = 8


def copy_of(listener: socket.socket) -> socket.socket:
    return socket.socket(fileno=os.dup(listener.fileno()))


class Pair:
    """Two instances on one port, of which one is replaced again and again; this is the supervisor's part, shortened."""

    def __init__(self, folder: Path) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port: int = self.listener.getsockname()[1]
        self._folder = folder
        self._names = itertools.count()
        self.here, self.there = self._start(), self._start()

    def _start(self) -> Instance:
        name = f"i{next(self._names)}"
        return Instance(self._folder, CODE, name=name, listener=copy_of(self.listener)).start()

    def kill(self) -> list[str]:
        """Kill one and let the other have its connections; return their phases."""
        gone, self.here, self.there = self.here, self.there, self._start()
        gone.kill()
        orphans = gone.hear_orphans()
        phases = [message.body["phase"] for message, _, _ in orphans]
        self._hand_over(orphans)
        gone.orphans.clear()
        gone.close()
        return phases

    def drain(self) -> int:
        """Drain one and let the other have its connections; return how many there were."""
        gone, self.here, self.there = self.here, self.there, self._start()
        gone.tell("drain")
        given = gone.hear_all()
        count = len(given)
        self._hand_over(given)
        gone.given.clear()
        assert gone.process.wait(30) == 0, gone.log()
        gone.close()
        return count

    def _hand_over(self, orphans: list[Orphan]) -> None:
        for number, orphan in enumerate(orphans):
            assert orphan[0].body.get("whole", True)
            # A real supervisor closes what was cut off in the middle of its answer; it should not happen here at all.
            assert orphan[0].body["phase"] != "answering"
            [self.here, self.there][number % 2].take(orphan)

    def close(self) -> None:
        self.here.close()
        self.there.close()
        self.listener.close()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    yield made
    made.close()


def call(port: int, number: int, over: threading.Event) -> int:
    """Call on one connection until told otherwise; each answer must be the one to its request."""
    answered = 0
    with socket.create_connection(("127.0.0.1", port), timeout=30) as sock:
        while not over.is_set():
            value = number * 1_000_000 + answered
            sock.sendall(infer_request([value, 1]))
            status, _, body = read_answer(sock)
            assert status == 200, body
            assert json.loads(body)["outputs"][0]["data"] == [2 * value, 2]
            answered += 1
    return answered


@pytest.mark.parametrize("way", ["kill", "drain"])
def test_no_call_fails_while_instances_come_and_go(pair: Pair, way: str) -> None:
    over = threading.Event()
    pause = threading.Event()
    with ThreadPoolExecutor(CALLERS) as pool:
        calls = [pool.submit(call, pair.port, number, over) for number in range(CALLERS)]
        try:
            for _ in range(CHANGES):
                pause.wait(random.uniform(0, 0.1))
                pair.kill() if way == "kill" else pair.drain()
        finally:
            over.set()
        assert all(one.result(60) > CHANGES for one in calls)


def test_new_connections_come_through_while_instances_are_killed(pair: Pair) -> None:
    over = threading.Event()

    def connect_again_and_again() -> int:
        count = 0
        while not over.is_set():
            with socket.create_connection(("127.0.0.1", pair.port), timeout=30) as sock:
                sock.sendall(infer_request())
                assert read_answer(sock)[0] == 200
            count += 1
        return count

    with ThreadPoolExecutor(3) as pool:
        calls = [pool.submit(connect_again_and_again) for _ in range(3)]
        try:
            for _ in range(CHANGES):
                pair.kill()
        finally:
            over.set()
        assert all(one.result(60) > CHANGES for one in calls)
