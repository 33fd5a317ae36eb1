"""Packets between a supervisor and its instances, with the files that travel in them."""

from __future__ import annotations

import os
import socket

import pytest

from scanflow.errors import InvalidError
from scanflow.instance_messages import ControlMessage
from scanflow.processes import seqpacket


@pytest.fixture
def pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def test_what_was_sent_before_the_end_arrives_though_the_sender_left_messages_unread(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    here, there = pair
    seqpacket.send(here, ControlMessage(kind="state", key="1"))  # which is never read
    reading, writing = os.pipe()
    seqpacket.send(there, ControlMessage(kind="listen"), [writing])
    os.close(writing)
    there.close()
    with here:
        came = seqpacket.receive(here)
        assert came is not None
        message, (fd,) = came
        assert message.kind == "listen"
        os.write(fd, b"x")
        os.close(fd)
        assert os.read(reading, 1) == b"x"
        os.close(reading)
        assert seqpacket.receive(here) is None


def test_what_is_no_message_is_reported_from_the_end(pair: tuple[socket.socket, socket.socket]) -> None:
    here, there = pair
    with here:
        with there:
            there.send(b"{")
            with pytest.raises(InvalidError):
                seqpacket.receive(here)
            here.setblocking(False)
            with pytest.raises(BlockingIOError):
                seqpacket.receive(here)
        assert seqpacket.receive(here) is None
