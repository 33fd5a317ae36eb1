"""The sockets that all processes of a service share."""

from __future__ import annotations

import os

from scanflow.backends.local.services.supervisor.listener import SharedSocket, open_listening_socket


def test_a_socket_that_gets_its_number_at_once_is_not_copied_to_itself() -> None:
    free = os.dup(0)
    os.close(free)
    shared = SharedSocket(free, open_listening_socket)
    assert shared.open("127.0.0.1", 0)
    assert shared.sock is not None
    assert (shared.sock.fileno(), shared.sock.get_inheritable()) == (free, False)
    shared.close()


def test_a_socket_gets_its_number_also_if_that_is_not_the_next() -> None:
    first, second = os.dup(0), os.dup(0)
    shared = SharedSocket(second, open_listening_socket)
    assert shared.open("127.0.0.1", 0)
    assert shared.sock is not None
    assert (shared.sock.fileno(), shared.sock.get_inheritable()) == (second, False)
    shared.close()
    os.close(first)
