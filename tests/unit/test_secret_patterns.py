"""Secrets are found in long texts as in short ones, in steps, and in time proportional to their length."""

from __future__ import annotations

import re
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanflow.text import secret_patterns
from scanflow.text.masking import Masker, mask_text
from scanflow.text.secret_patterns import SteppingPattern, may_need_mask

PLAIN = {
    "USER_INFO": re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*://)([^\s/?#\"'<>`]+)@"),
    "ODD_USER_INFO": re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*://)([^\s\"'<>`@:/]+:[^\s\"'<>`]*)@"),
    "MEMBER": re.compile(r"""((["'])([A-Za-z][\w.\-]*)\2\s*:\s*)(["'])((?:\\.|(?!\4).)+)(?=\4)""", re.DOTALL),
    "ASSIGNED": re.compile(r"""(?<![\w.\-?&])((-{0,2}[A-Za-z][\w.\-]*)=)("[^"]+"|'[^']+'|[^\s;&,"'<>]+)"""),
    "OPTION_VALUE": re.compile(r"""(?<!\S)((--?[A-Za-z][\w.\-]*)\s+)("[^"]+"|'[^']+'|[^\s\-"']\S*)"""),
    "LABELLED": re.compile(
        r"""(?<![\w.\-])(([A-Za-z][\w.\-]*)\s*:\s+)("[^"]+"|'[^']+'|[^\s,;"'<>{}\[\]()]+)"""
    ),
    "OWN_TOKEN": re.compile(r"\b(scanflow_(?:step\.)?[\w.\-]{20,})"),
    "HEADER": re.compile(
        r"\b((?:authorization\s*[:=]\s*(?:\w+\s+)?)|bearer\s+)([\w.~+/=\-]{8,})", re.IGNORECASE
    ),
    "QUERY_VALUE": re.compile(r"([?&;])([^\s=&;#?\"'<>]+)=([^\s&;#\"'<>]+)"),
}  # fmt: skip
"""The patterns as they are meant, whatever time they take."""

PLAIN_SIGN = re.compile(
    r"accesskey|apikey|auth|bearer|cookie|credential|dsn|pass|privatekey|pw|secret|token|\"env\""
    r"|(access|account|api|encryption|hmac|master|private|signing|ssh)[^a-z\"]{0,2}key"
    r"|tracker|notify|://[^/\"]*@|://[^\"]*[?&;]",
    re.IGNORECASE,
)

PIECES = [
    *(
        "a b1 1 é token password api_key apikey ssh key Bearer authorization scanflow_ step. secretsecretsecretsecret "
        'http:// s3:// :// @ : = - -- ? & ; # , . / < > ( [ { … ... *** tracker notify "env" " \' ` \\ \\" \\\\ '
        "\u017fecret apiKey audİt s3cr sECRET-value9 value9"
    ).split(),
    " ",
    "\n",
    ": ",
]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=30).map("".join)
MASKER = Masker({"env": {"A_TOKEN": "sECRET-value9", "B_KEY": "s3cr"}})


@pytest.fixture
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"MAX_AT_ONCE": 0, "STEP_LENGTH": 3, "_BLOCK_LENGTH": 5}.items():
        monkeypatch.setattr(secret_patterns, name, value)
    for pattern in [getattr(secret_patterns, name) for name in PLAIN]:
        monkeypatch.setitem(vars(pattern), "stepping", SteppingPattern.stepping.func(pattern))  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.usefixtures("_small_steps")
def test_steps_find_what_a_search_of_the_whole_finds(name: str) -> None:
    pattern = getattr(secret_patterns, name)

    @given(TEXTS)
    def hold(text: str) -> None:
        expected = PLAIN[name].sub(lambda match: f"{match[1]}|{match.lastindex}|", text)
        assert pattern.substitute(lambda match: f"{match[1]}|{match.lastindex}|", text) == expected

    hold()


@pytest.mark.usefixtures("_small_steps")
def test_a_text_that_may_need_a_mask_is_found() -> None:
    @given(TEXTS)
    def hold(text: str) -> None:
        assert may_need_mask(text) == (PLAIN_SIGN.search(text) is not None)

    hold()


def test_text_is_folded_as_a_pattern_that_ignores_case_does() -> None:
    taken = re.findall("[a-z]", "".join(map(chr, range(sys.maxunicode))), re.IGNORECASE)
    assert len(taken) > 52
    assert all(re.fullmatch(secret_patterns.fold(letter), letter, re.IGNORECASE) for letter in taken)


def test_a_secret_in_a_long_text_is_mmechanism_in_a_short_one(monkeypatch: pytest.MonkeyPatch) -> None:
    @given(st.lists(TEXTS, min_size=1, max_size=3), st.sampled_from([1, 5, 4000, 5000]))
    def hold(texts: list[str], length: int) -> None:
        text = ("x" * length + " ").join(texts)
        with monkeypatch.context() as patch:
            patch.setattr(secret_patterns, "MAX_AT_ONCE", 0)
            stepped = MASKER.mask_text(text)
        assert stepped == MASKER.mask_text(text)

    hold()


LONG = {
    "hexadecimal": "0123456789abcdef" * 2**15,
    "table": "17,0.25,0.125,name17\n" * 25_000,
    "base64": "pwABCDEF+GHIJ/KLMN" * 30_000 + "==",
    "words": "token and then some words of a text, of which most are not much longer than that " * 6000,
}


@pytest.mark.parametrize("name", LONG)
def test_a_step_is_short_and_a_long_text_takes_few(name: str) -> None:
    text = LONG[name]
    for pattern in (getattr(secret_patterns, name) for name in PLAIN):
        steps = [match.end() - match.start() for match in pattern.stepping.finditer(text)]
        assert len(steps) <= len(text) / 2
        assert max(steps) <= 2 * secret_patterns.STEP_LENGTH


@pytest.mark.parametrize(
    "text",
    [
        'token "a": "' + "\\a" * 100_000,  # a text that does not end, with what may be read in two ways
        "a" * 400_000 + " s3://user:word@host",
        "s3://b:c" * 50_000 + " @",
        "s3://b" * 100_000,
    ],
)
def test_no_text_takes_time_that_grows_faster_than_it(text: str) -> None:
    assert mask_text(text) == text.replace("user:word@", "***@")


def test_a_text_of_json_that_was_cut_is_masked_to_its_last_escaped_quote() -> None:
    assert mask_text('{"password": "ab\\"cd\\"ef') == '{"password": "***"ef'
