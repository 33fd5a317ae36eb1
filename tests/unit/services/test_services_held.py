"""Connections without an instance, with real sockets."""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanflow.backends.local.services.balance import surplus
from scanflow.backends.local.services.held import Held, Holding
from scanflow.wire import Exchange


class Call:
    """A client's end of a connection whose other end is held."""

    def __init__(self, holding: Holding, **body: object) -> None:
        self.client, server = socket.socketpair()
        self.client.settimeout(10)
        self.server = server.detach()
        memory = os.memfd_create("request")
        self.copy = os.dup(self.server)
        holding.add(Exchange(kind="orphan", body={"instance": "1", **body}), [self.server, memory], gave=False)

    def read(self) -> bytes:
        found = b""
        while part := self.client.recv(4096):
            found += part
        return found


@pytest.fixture
def holding() -> Iterator[Holding]:
    made = Holding()
    yield made
    made.close()


def settle(holding: Holding, *, ready: bool = False, asleep: bool = False, taken: list[Held] | None = None) -> None:
    def take(held: Held, _: float | None) -> bool:
        if taken is None:
            return False
        taken.append(held)
        return True

    holding.settle(limit_s=10, ready=ready, hope=True, asleep=asleep, fresh=lambda _: False, take=take)


def test_what_can_be_taken_is_handed_over_once(holding: Holding) -> None:
    taken: list[Held] = []
    with Call(holding, phase="waiting").client:
        settle(holding, ready=True, taken=taken)
        settle(holding, ready=True, taken=taken)
        assert [held.phase for held in taken] == ["waiting"]
        assert not holding.all
        taken[0].close()


def test_what_nobody_takes_is_held_on(holding: Holding) -> None:
    with Call(holding, phase="idle").client:
        settle(holding, ready=True)
        assert len(holding.all) == 1


def test_a_request_that_may_be_to_blame_is_answered_with_a_problem(holding: Holding) -> None:
    call = Call(holding, phase="running")
    holding.all[0].ending = "crashed"
    settle(holding, ready=True)
    os.close(call.copy)
    with call.client:
        head, _, body = call.read().partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 502 ")
    assert b"Connection: close" in head
    assert b'"status":502' in body


def test_an_answer_that_was_begun_is_cut_off(holding: Holding) -> None:
    call = Call(holding, phase="answering")
    settle(holding, ready=True)
    os.close(call.copy)
    with call.client:
        assert call.read() == b""


def test_what_a_dying_instance_was_handed_is_held_again(holding: Holding) -> None:
    taken: list[Held] = []
    with Call(holding, phase="waiting").client:
        settle(holding, ready=True, taken=taken)
        holding.passed(taken[0], "2", "#1")
        holding.ended("2")
        assert holding.all == taken
        settle(holding, ready=True, taken=taken)
        assert len(taken) == 1  # its keeper may still bring it


def test_what_its_keeper_brings_replaces_the_copy(holding: Holding) -> None:
    taken: list[Held] = []
    call = Call(holding, phase="waiting")
    with call.client:
        settle(holding, ready=True, taken=taken)
        holding.passed(taken[0], "2", "#1")
        holding.ended("2")
        holding.add(Exchange(kind="orphan", body={"instance": "2", "phase": "running"}), [call.copy], gave=False)
        assert [(held.phase, held.instance) for held in holding.all] == [("running", "2")]


def test_what_arrived_is_let_go(holding: Holding) -> None:
    taken: list[Held] = []
    call = Call(holding, phase="idle")
    settle(holding, ready=True, taken=taken)
    holding.passed(taken[0], "2", "#1")
    holding.arrived("2", "#1")
    holding.ended("2")
    assert not holding.all
    os.close(call.copy)
    with call.client:
        assert call.read() == b""


def test_idle_callers_of_a_sleeping_service_sleep_with_it_until_they_call(holding: Holding) -> None:
    taken: list[Held] = []
    call = Call(holding, phase="idle")
    with call.client:
        holding.all[0].since -= 3600
        settle(holding, asleep=True, taken=taken)
        assert not holding.wakers()
        call.client.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert len(holding.wakers()) == 1
    os.close(call.copy)


def test_a_sleeping_caller_that_goes_away_wakes_nobody(holding: Holding) -> None:
    call = Call(holding, phase="idle")
    os.close(call.copy)
    call.client.close()
    assert not holding.wakers()
    assert not holding.all


# Balance


def test_two_callers_on_one_of_two_instances_are_parted() -> None:
    assert surplus({"1": 2, "2": 0}) == {"1": 1}
    assert surplus({"1": 4, "2": 0}) == {"1": 2}
    assert surplus({"1": 2, "2": 1}) == {}
    assert surplus({"1": 500, "2": 520}) == {}


@given(st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 200), min_size=1))
def test_moving_what_is_too_much_makes_it_even_and_then_nothing_moves(connections: dict[str, int]) -> None:
    given_away = surplus(connections)
    after = Counter(connections)
    after.subtract(given_away)
    assert all(count >= 0 for count in after.values())
    for _ in range(sum(given_away.values())):
        after[min(connections, key=lambda name: after[name])] += 1
    assert surplus({name: after[name] for name in connections}) == {}
