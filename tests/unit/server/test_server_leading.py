"""Of several servers one acts: a lease is taken by one, kept, released, and lost."""

from __future__ import annotations

import threading

import pytest

from scanflow.backends.backend_port import Lease
from scanflow.backends.memory import Memory
from scanflow.errors import UnavailableError
from scanflow_server.leader_election import DEADLINE_S, LeaseRenewal, acquire
from tests.waiting import PATIENCE_S, wait_until


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Counted:
    """A lease, and how often it was asked for."""

    def __init__(self, lease: Lease) -> None:
        self._lease, self.takes = lease, 0
        self.release = lease.release

    def take(self) -> bool:
        self.takes += 1
        return self._lease.take()


class Place:
    """A backend's leases, and a clock that is moved by hand."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.backend = Memory(clock=self.clock)

    def lease(self, holder: str) -> Lease:
        return self.backend.lease("servers", holder=holder, duration_s=15.0)


@pytest.fixture
def place() -> Place:
    return Place()


def test_a_second_server_leads_once_the_first_has_ended(place: Place) -> None:
    first, second, never = place.lease("a"), Counted(place.lease("b")), threading.Event()
    assert acquire(first, never)
    renewal = LeaseRenewal(first, clock=place.clock, period_s=0.01)
    renewal.start()
    took: list[bool] = []
    waiting = threading.Thread(target=lambda: took.append(acquire(second, never, period_s=0.01)), daemon=True)
    waiting.start()
    for _ in range(20):  # twice as long as a lease lasts
        place.clock.now += 1.5
        wait_until(lambda: renewal.renewed_at == place.clock.now, "it was kept")
    enough = second.takes + 3
    wait_until(lambda: second.takes >= enough, "the second has asked for it again and again")
    assert (took, first.take(), second.take()) == ([], True, False)
    renewal.stop()
    waiting.join(PATIENCE_S)
    assert (took, first.take()) == ([True], False)


def test_a_server_that_is_requested_to_end_while_it_stands_by_never_leads(place: Place) -> None:
    assert place.lease("a").take()
    asked = threading.Event()
    asked.set()
    assert not acquire(place.lease("b"), asked)


def test_a_server_that_lost_its_lease_ends_at_once(place: Place) -> None:
    lost = threading.Event()
    lease = place.lease("a")
    assert lease.take()
    place.clock.now = 16.0  # it was stopped for so long, as a machine that sleeps
    assert place.lease("b").take()
    renewal = LeaseRenewal(lease, lost=lost.set, clock=place.clock, period_s=0.01)
    renewal.start()
    wait_until(lost.is_set, "it ended")
    renewal.stop()
    assert place.lease("b").take(), "what is another's is not released"


class _Hangs:
    takes = 0

    def take(self) -> bool:
        self.takes += 1
        raise UnavailableError("The API server does not answer")

    def release(self) -> None:
        raise UnavailableError("The API server does not answer")


def test_a_server_that_cannot_keep_its_lease_ends_before_another_may_take_it(place: Place) -> None:
    lost, hangs = threading.Event(), _Hangs()
    renewal = LeaseRenewal(hangs, lost=lost.set, clock=place.clock, period_s=0.01)
    renewal.start()
    place.clock.now = DEADLINE_S
    enough = hangs.takes + 3
    wait_until(lambda: hangs.takes >= enough, "it was tried again and again")
    assert not lost.is_set()
    place.clock.now = DEADLINE_S + 0.1
    wait_until(lost.is_set, "it ended")
    renewal.stop()
