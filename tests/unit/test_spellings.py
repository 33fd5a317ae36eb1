"""However a secret is spelled in what is printed, its characters do not stand in what is shown."""

from __future__ import annotations

import base64
import html
import json
import re
import shlex
import textwrap
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scanflow.text.masking import MIN_LENGTH_ANYWHERE, MaskedStream, Masker

WORDS = ("Kqzv", "Xwjy", "Zjqw", "Vyxk")
"""Parts of secrets, of letters that stand nowhere else in what these tests print."""

SPECIAL = st.text("\"'\\/%&<> +é€\U0001f511\n\t=:@;,{}[]", min_size=1, max_size=3)
SPELL: dict[str, Callable[[str], str]] = {
    "as it is": str,
    "repr": repr,
    "repr beside quotes": lambda secret: repr({"a": f'it\'s "{secret}"'}),
    "ascii": ascii,
    "bytes": lambda secret: repr(secret.encode()),
    "JSON": json.dumps,
    "JSON as it is": lambda secret: json.dumps([secret], ensure_ascii=False),
    "JSON in JSON": lambda secret: json.dumps({"body": json.dumps({"key": secret})}),
    "JSON in JSON as it is": lambda secret: json.dumps(json.dumps(secret, ensure_ascii=False), ensure_ascii=False),
    "repr in JSON": lambda secret: json.dumps({"error": repr(secret)}),
    "bytes in JSON": lambda secret: json.dumps({"error": repr(secret.encode())}),
    "JSON in repr": lambda secret: repr([json.dumps(secret)]),
    "shell": shlex.quote,
    "HTML": html.escape,
    "text of HTML": lambda secret: html.escape(secret, quote=False),
    "JSON in HTML": lambda secret: html.escape(json.dumps(secret)),
    "address": quote,
    "address, all": lambda secret: quote(secret, safe=""),
    "address, lower case": lambda secret: re.sub("%..", lambda match: match[0].lower(), quote(secret)),
    "form": quote_plus,
    "JSON in an address": lambda secret: quote(json.dumps({"key": secret})),
}


def list_spellings(shown: str) -> list[str]:
    return [word for word in WORDS if word.lower() in shown.lower()]


@st.composite
def secrets(draw: st.DrawFn) -> str:
    return "".join(word + draw(SPECIAL) for word in WORDS[:2]) + WORDS[2]


@given(secret=secrets(), before=st.sampled_from(["", "user:", "é "]), after=st.sampled_from(["", "!", '"']))
@example(secret="Kqzv\"Xwjy\\Zjqw'é", before="", after="")
def test_a_secret_is_masked_however_it_is_spelled(secret: str, before: str, after: str) -> None:
    masker = Masker.from_values([secret])
    for how, spell in SPELL.items():
        printed = before + spell(secret) + after
        assert list_spellings(masker.mask_text(printed)) == [], how
        assert list_spellings(MaskedStream(masker).feed(printed.encode(), last=True).decode()) == [], how
        assert masker.occurs_in(printed), how


BASE64 = {"standard": base64.b64encode, "urlsafe": base64.urlsafe_b64encode}


@pytest.mark.parametrize("alphabet", BASE64)
@given(
    secret=st.text(st.characters(codec="ascii", categories=["L", "N", "P", "S"]), min_size=8, max_size=30),
    before=st.binary(max_size=7),
    after=st.binary(max_size=7),
)
def test_a_secret_in_base64_is_masked_whatever_stands_beside_it(
    alphabet: str, secret: str, before: bytes, after: bytes
) -> None:
    printed = BASE64[alphabet](before + secret.encode() + after).decode()
    shown = Masker.from_values([secret]).mask_text(printed)
    assert "***" in shown
    # Whatever an attacker decodes of what is left: nothing of what depended on the secret alone is there.
    rest = shown.replace("***", "")
    assert len(rest) <= len(printed) - (8 * len(secret) // 6 - 1)


def test_a_short_password_is_masked_in_basic_authorization() -> None:
    masker = Masker.from_values(["hunter2"])
    for user in ("a", "ad", "ada", "user"):
        shown = masker.mask_text(f"header: {base64.b64encode(f'{user}:hunter2'.encode()).decode()}")
        assert len(shown.partition("***")[2]) <= 4, shown
        assert "***" in shown


def list_texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for item in inner for text in list_texts(item)]


LINES = [f"{word}{index:02}{'AbCd+/09' * 7}" for index, word in enumerate(WORDS)]
PEM = "-----BEGIN TEST KEY-----\n" + "\n".join([*LINES, "Ef=="]) + "\n-----END TEST KEY-----\n"
TOKEN = "Kqzv-Xwjy-0815"


@pytest.mark.parametrize(
    "document",
    [
        {"type": "service_account", "private_key": PEM},
        {"private_key": PEM, "deep": [{"value": [TOKEN]}]},
        [TOKEN, PEM],
        {"pass": TOKEN, "port": 8080},
        {"value": f'{TOKEN}"\\'},
    ],
)
@pytest.mark.parametrize("indent", [None, 2])
def test_the_texts_of_a_secret_that_is_json_are_masked_alone(document: Any, indent: int | None) -> None:
    secret = json.dumps(document, indent=indent)
    masker = Masker.from_values([secret])

    texts = list_texts(document)
    lines = [line for text in (secret, *texts) for line in text.splitlines()]
    literals = [spell(text) for text in texts for spell in (repr, json.dumps)]
    for printed in (secret, repr(document), *texts, *lines, *literals):
        assert list_spellings(masker.mask_text(printed)) == [], printed
        stream = MaskedStream(masker)
        assert list_spellings((stream.feed(f"{printed}\n".encode()) + stream.feed(b"", last=True)).decode()) == []


TEXTS = st.text('KqzvXwjy0123 -_"\\é\n', max_size=20)


@given(
    document=st.recursive(
        TEXTS | st.integers() | st.booleans() | st.none(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abcd"), inner, max_size=3),
        max_leaves=6,
    ).filter(lambda value: isinstance(value, dict | list))
)
def test_no_long_line_of_a_text_in_json_is_shown(document: Any) -> None:
    masker = Masker.from_values([json.dumps(document)])
    for line in {line.strip() for text in list_texts(document) for line in text.splitlines()}:
        if len(line) >= MIN_LENGTH_ANYWHERE and set(line) & set("KqzvXwjy"):  # else it may be a number
            assert line not in masker.mask_text(f"it is {line}, and not another")


def test_what_is_json_by_its_beginning_only_is_a_secret_as_any_other() -> None:
    for secret in ("{Kqzv-Xwjy", "[" * 5_000, '["Kqzv-Xwjy', "[Kqzv]-Xwjy"):
        assert Masker.from_values([secret]).mask_text(f"it is {secret[:200]}…") == "it is ***…"


def test_numbers_and_brackets_of_a_secret_that_is_json_are_shown_elsewhere() -> None:
    document = {"pass": TOKEN, "port": 8080, "since": "2026-01-01", "ssl": "true", "db": "dev", "hosts": [5432, {}]}
    masker = Masker.from_values([json.dumps(document, indent=2)])
    for text in ("{", "}", "]", "}, [", "{}", "port 8080 of 5432, 1", "2026-01-01 ok", "true", "development: dev"):
        assert masker.mask_text(text) == text
        assert not masker.occurs_in(text)
    assert masker.mask_text(f"with {TOKEN}") == "with ***"


def test_a_log_is_masked_where_a_secret_begins_more_than_once() -> None:
    masker = Masker.from_values(["Kqzv-Kqzv-Xwjy"])
    stream = MaskedStream(masker)
    blocks = [stream.feed(block, last=block == b"!") for block in (b"Kx Kqzv-K\rKqzv-", b"Kqzv-Xwjy", b"!")]
    assert b"".join(blocks) == b"Kx Kqzv-K\r***!"
    assert masker.mask_text("…zv-Xwjy, y") == "…***, y"
    multiline = MaskedStream(Masker.from_values(["KK\nKqzv-Xwjy"]))
    assert multiline.feed(b"K KK\n") + multiline.feed(b"Kqzv-Xwjy", last=True) == b"K ***"


def test_the_password_in_a_secret_that_is_json_is_masked_in_basic_authorization() -> None:
    masker = Masker.from_values([json.dumps({"user": "ada", "value": TOKEN}), " Kqzv-Xwjy-2 "])
    assert "***" in masker.mask_text(base64.b64encode(f"ada:{TOKEN}".encode()).decode())
    assert masker.mask_text("it is Kqzv-Xwjy-2") == "it is ***"


def test_the_short_lines_of_a_secret_do_not_count() -> None:
    masker = Masker.from_values(["{\n  a9\n}\nlong-line-1\n48151623"])
    assert masker.mask_text("{ } a9 long-line-1 48151623") == "{ } a9 *** ***"


@pytest.mark.parametrize("width", [64, 76, 10_000])
@pytest.mark.parametrize("secret", [PEM, PEM.replace("\n", "\\n"), json.dumps({"value": PEM})])
def test_a_key_is_masked_however_it_is_wrapped(secret: str, width: int) -> None:
    masker = Masker.from_values([secret])
    for line in textwrap.wrap("".join([*LINES, "Ef=="]), width):
        assert masker.mask_text(f"  {line}") == "  ***"


def test_an_output_may_hold_what_a_secret_that_is_json_says_of_itself() -> None:
    document = {"project_id": "our-project-1", "url": "https://auth.example/token", "private_key": PEM, "pw": TOKEN}
    masker = Masker.from_values([json.dumps({**document, "value": PEM, "key": ["listed-1"]})], all_texts=False)
    assert not masker.occurs_in("listed-1"), "neither is the list's name a secret's"
    assert Masker.from_values(['["listed-1"]'], all_texts=False).occurs_in("listed-1")
    assert Masker.from_values([json.dumps({"value": PEM})], all_texts=False).occurs_in(LINES[0])
    assert not masker.occurs_in("gs://our-project-1/models and https://auth.example/token")
    assert all(masker.occurs_in(text) for text in (LINES[0], PEM, json.dumps(PEM), f"x{TOKEN}"))
