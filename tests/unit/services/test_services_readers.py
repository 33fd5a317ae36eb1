"""Processes that wait for a service's report."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from scanflow.backends.local.services.supervisor.readers import PATIENCE_S, Readers


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.setblocking(False)
    with ours, theirs:
        yield ours, theirs


def is_answered(peer: socket.socket) -> bool:
    try:
        return peer.recv(1) == b""
    except BlockingIOError:
        return False


def wait(readers: Readers, peer: socket.socket) -> float:
    """Have a process wait for a report; return since when."""
    readers.add(peer)
    assert readers.since is not None
    return readers.since


def test_a_reader_is_answered_once_all_counts_are_from_after_it_came(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    readers = Readers()
    at = wait(readers, ours)
    assert not readers.has_due(at - 0.001, at)
    readers.answer(at - 0.001, at)
    assert not is_answered(theirs)
    assert readers.has_due(at, at)
    readers.answer(at, at)
    assert (is_answered(theirs), readers.since) == (True, None)


def test_an_instance_that_is_stuck_keeps_no_reader(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    readers = Readers()
    at = wait(readers, ours)
    later = at + PATIENCE_S + 0.001
    assert readers.has_due(0.0, later)
    readers.answer(0.0, later)
    assert is_answered(theirs)


def test_readers_are_let_go_when_the_supervisor_ends(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    readers = Readers()
    readers.add(ours)
    readers.close()
    assert (is_answered(theirs), readers.since) == (True, None)
