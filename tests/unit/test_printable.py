"""Text of others on a terminal, and secrets in what is shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanflow.text.masking import STARS, mask_secrets
from scanflow.text.printable import PrintableStream, make_one_line, make_printable
from scanflow.text.secret_names import looks_secret

ATTACKS = {
    "a title": ("\x1b]0;owned\x07safe", "safe"),
    "a title that ends with ST": ("\x1b]2;owned\x1b\\safe", "safe"),
    "a title in C1": ("\x9d0;owned\x9csafe", "safe"),
    "a title without an end": ("\x1b]0;owned\nsafe", "\nsafe"),
    "a hyperlink": ("\x1b]8;;http://evil\x07text\x1b]8;;\x07", "text"),
    "a colour": ("\x1b[1;31mred\x1b[0m", "red"),
    "a cleared screen and a moved cursor": ("\x1b[2J\x1b[10;10Hx\x9b1Ay", "xy"),
    "a question to the terminal": ("\x1b[6n\x1b[>c\x1bP+q544e\x1b\\x", "x"),
    "a reset": ("\x1bcx\x1b(0y\x1b7", "xy"),
    "an overwritten line": ("failed\rgood", "failed\ngood"),
    "a rubbed out letter": ("ab\bc\x7f\x00\x07", "abc"),
    "a reordered text": ("user\u202etxt.exe\u2066", "usertxt.exe"),
    "an end in the middle": ("x\x1b", "x"),
    "a nested one": ("\x1b[\x1b]0;t\x07x", "x"),
}


@pytest.mark.parametrize(("text", "safe"), ATTACKS.values(), ids=ATTACKS)
def test_sequences_for_the_terminal_are_taken_out_also_where_blocks_cut_them(text: str, safe: str) -> None:
    assert make_printable(text) == safe
    stream = PrintableStream()
    blocks = [bytes([byte]) for byte in text.encode()]
    assert "".join([*map(stream.feed, blocks), stream.feed(b"", last=True)]).rstrip("\n") == safe.rstrip("\n")


@given(st.text(st.sampled_from("\x1b\x9b\x9d[]0;m\x07\\aÄ\n\t\r") | st.characters()))
def test_nothing_that_a_terminal_obeys_is_left_and_text_stays(text: str) -> None:
    printable = make_printable(text)
    assert not any(sign != "\n" and sign != "\t" and (ord(sign) < 32 or 127 <= ord(sign) < 160) for sign in printable)
    assert make_printable(printable) == printable


def test_a_line_is_cut_and_has_no_breaks() -> None:
    assert make_one_line("a\nb\t c\x1b[1m") == "a b c"
    assert make_one_line("abcdef", 4) == "abc…"


def test_a_string_that_never_ends_is_not_withheld_for_ever() -> None:
    stream = PrintableStream()
    assert stream.feed(b"\x1b]0;" + b"x" * 5000) == ""
    assert stream.feed(b"\nafter", last=True) == "\nafter"


@pytest.mark.parametrize(
    "name",
    ["password", "db_password", "dbPassword", "HF_TOKEN", "token", "train.api_key", "AWS_SECRET_ACCESS_KEY", "apiKey"],
)
def test_a_name_that_looks_like_a_secret(name: str) -> None:
    assert looks_secret(name)


@pytest.mark.parametrize("name", ["max_tokens", "n_tokens", "tokenizer", "key", "epochs", "author", "secretary", ""])
def test_a_name_that_does_not(name: str) -> None:
    assert not looks_secret(name)


def test_secrets_become_stars_at_any_depth() -> None:
    fields = {
        "epochs": 3,
        "password": "hunter2",
        "db": {"token": "x", "url": "u"},
        "all": [{"api_key": 1}],
        "pwd": None,
    }
    assert mask_secrets(fields) == {
        "epochs": 3, "password": STARS, "db": {"token": STARS, "url": "u"}, "all": [{"api_key": STARS}], "pwd": None,
    }  # fmt: skip
