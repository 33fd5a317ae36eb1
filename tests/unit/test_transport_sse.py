"""Server-sent events, whatever the blocks they come in."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanflow.transport.sse import Message, Parser


def parse(*blocks: bytes) -> list[Message]:
    parser = Parser()
    return [message for block in blocks for message in parser.feed(block)]


@pytest.mark.parametrize(
    ("stream", "messages"),
    [
        (b"id: 7\nevent: done\ndata: a\ndata: b\n\n", [Message(data="a\nb", event="done", id="7")]),
        (b"data:a\n\n", [Message(data="a")]),
        (b": still here\n\nretry: 10\n\nnonsense\n\ndata: x\n\n", [Message(data="x")]),
        (b"id: 1\ndata: x\n\ndata: y\n\n", [Message(data="x", id="1"), Message(data="y")]),
        (b"data: x\n\ndata: cut off\n", [Message(data="x")]),
        ("data: a\u2028b\x0bc\x85d\n\n".encode(), [Message(data="a\u2028b\x0bc\x85d")]),
    ],
)
def test_messages_are_read_as_the_standard_says(stream: bytes, messages: list[Message]) -> None:
    assert parse(stream) == messages


texts = st.text(st.characters(exclude_characters="\r\n", codec="utf-8"), max_size=12)


@given(
    messages=st.lists(st.lists(texts, min_size=1, max_size=3), max_size=5),
    end=st.sampled_from(["\n", "\r\n", "\r"]),
    bom=st.booleans(),
    cuts=st.lists(st.integers(0, 200), max_size=12),
)
def test_blocks_may_be_of_any_size(messages: list[list[str]], end: str, bom: bool, cuts: list[int]) -> None:
    lines = [line for message in messages for line in [*(f"data: {text}" for text in message), ""]]
    stream = ("\ufeff" if bom else "").encode() + "".join(line + end for line in lines).encode()
    stream += b": the end\n"  # after a CR that may have been the first half of a line's end
    places = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    blocks = [stream[begin:stop] for begin, stop in pairwise(places)]
    assert [message.data for message in parse(*blocks)] == ["\n".join(message) for message in messages]
