"""Server-sent events, whatever the blocks they come in."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from scanflow.transport.sse import Message, Parser


def parse(*blocks: bytes) -> list[Message]:
    parser = Parser()
    return [message for block in blocks for message in parser.feed(block)]


def test_a_message_has_data_and_may_have_a_type_and_an_id() -> None:
    assert parse(b"id: 7\nevent: done\ndata: a\ndata: b\n\n") == [Message(data="a\nb", event="done", id="7")]
    assert parse(b"data:a\n\n") == [Message(data="a")]


def test_comments_and_unknown_fields_say_nothing() -> None:
    assert parse(b": still here\n\nretry: 10\n\nnonsense\n\ndata: x\n\n") == [Message(data="x")]


def test_a_message_has_its_own_id_or_none() -> None:
    assert [one.id for one in parse(b"id: 1\ndata: x\n\ndata: y\n\nid: 3\ndata: z\n\n")] == ["1", None, "3"]


def test_a_message_that_was_cut_off_is_not_told() -> None:
    assert parse(b"data: x\n\ndata: y\n") == [Message(data="x")]


def test_text_with_other_line_ends_inside_is_one_line() -> None:
    assert parse("data: a\u2028b\x0bc\x85d\n\n".encode()) == [Message(data="a\u2028b\x0bc\x85d")]


texts = st.text(st.characters(exclude_characters="\r\n", codec="utf-8"), max_size=12)


@given(
    messages=st.lists(st.lists(texts, min_size=1, max_size=3), max_size=5),
    end=st.sampled_from(["\n", "\r\n", "\r"]),
    bom=st.booleans(),
    cuts=st.lists(st.integers(0, 200), max_size=12),
)
def test_blocks_may_be_of_any_size(messages: list[list[str]], end: str, bom: bool, cuts: list[int]) -> None:
    lines = [line for one in messages for line in [*(f"data: {text}" for text in one), ""]]
    stream = ("\ufeff" if bom else "").encode() + "".join(line + end for line in lines).encode()
    stream += b": the end\n"  # after a CR that may have been the first half of a line's end
    places = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    blocks = [stream[begin:stop] for begin, stop in pairwise(places)]
    assert [one.data for one in parse(*blocks)] == ["\n".join(one) for one in messages]
