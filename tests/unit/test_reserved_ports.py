"""The ports that tests hold for servers: of those that are tried, what is not held is closed."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from tests.serving import reserve_ports


def test_what_is_bound_before_a_port_in_the_row_that_is_taken_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    bound: list[socket.socket] = []
    further = 0

    class SocketWithATakenPort(socket.socket):
        def bind(self, address: Any, /) -> None:
            bound.append(self)
            nonlocal further
            further += address[1] != 0
            if address[1] and further == 2:
                raise OSError("Address already in use")
            super().bind(address)

    monkeypatch.setattr(socket, "socket", SocketWithATakenPort)
    with reserve_ports(3) as ports:
        assert ports == list(range(ports[0], ports[0] + 3))
        assert [each.fileno() for each in bound[:3]] == [-1] * 3
        assert all(each.fileno() >= 0 for each in bound[-3:])
    assert [each.fileno() for each in bound] == [-1] * len(bound)
