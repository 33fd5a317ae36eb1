"""What gives a secret in a text, as patterns, and a quick look for a sign of one. Standard library only.

A search holds the interpreter from its beginning to its end, which in a long text is seconds. So each pattern is
written so that its time is proportional to the text's length, and is searched for in long texts step by step, between
which other threads run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cached_property

Replace = Callable[[re.Match[str]], str]

MAX_AT_ONCE = 32 * 1024
"""A longer text is searched in steps, in characters."""

STEP_LENGTH = 4096

_BLOCK_LENGTH, _OVERLAP = 256 * 1024, 32
"""How much of a text is searched for signs at once, and how much more than the longest of them."""


class SteppingPattern:
    """A pattern that is searched for step by step, with what searching the whole text at once finds.

    A step is some characters in which the pattern cannot begin: it is tried where the pattern was, and did not match.
    """

    def __init__(
        self,
        pattern: str,
        *,
        may_occur_in: Callable[[str], bool] = bool,
        run: str = "",
        mark: str = "",
        start: str = "",
        hopeless: str = "",
        flags: re.RegexFlag = re.NOFLAG,
    ) -> None:
        """Args:
        pattern: It has groups, and the first is a part of each match.
        may_occur_in: Returns False for most texts in which it does not occur, and quickly.
        run: A class of characters; the pattern begins with one of them, and never after another of them.
        mark: A character that comes after that run in each match, at once or after spaces.
        start: Instead of these, a class of characters; the pattern begins with one of them, wherever.
        hopeless: A pattern without groups, of what no match begins in where the pattern itself does not match.
        flags: Those of ``re.compile``.
        """
        self._may_occur_in, self._flags = may_occur_in, flags
        self._run, self._mark, self._start = run, mark, start
        self._pattern = f"{pattern}|{hopeless}" if hopeless else pattern

    def substitute(self, replace: Replace, text: str) -> str:
        """Return ``text`` with what ``replace`` returns in the place of each match."""
        parts, end = [], 0
        for match in self._search(text):
            parts += [text[end : match.start()], replace(match)]
            end = match.end()
        return "".join([*parts, text[end:]]) if parts else text

    def occurs_in(self, text: str) -> bool:
        return any(True for _ in self._search(text))

    def _search(self, text: str) -> Iterator[re.Match[str]]:
        if not self._may_occur_in(text):
            return iter(())
        pattern = self.whole if len(text) <= MAX_AT_ONCE else self.stepping
        return (match for match in pattern.finditer(text) if match.lastindex is not None)

    @cached_property
    def whole(self) -> re.Pattern[str]:
        """The pattern. It is compiled when a text first needs it: each process of a step imports this module."""
        return re.compile(self._pattern, self._flags)

    @cached_property
    def stepping(self) -> re.Pattern[str]:
        """The pattern, or else a step."""
        steps = f"[^{self._start}]{{1,{STEP_LENGTH}}}"
        if self._run:
            inside, outside = f"(?<=[{self._run}])[{self._run}]{{1,{STEP_LENGTH}}}", f"[^{self._run}]"
            steps = f"{inside}{outside}{{0,{STEP_LENGTH}}}|{outside}{{1,{STEP_LENGTH}}}"
        if self._mark:  # to the beginning of a run: those before it are followed by another run, and not by the mark
            steps += f"|[^{self._mark}]{{2,{STEP_LENGTH}}}(?<![{self._run}])(?=[{self._run}])"
        return re.compile(f"{self._pattern}|{steps}", self._flags)


def _holds(part: str) -> Callable[[str], bool]:
    return lambda text: part in text


def build_exact_pattern(words: tuple[str, ...]) -> SteppingPattern:
    """Return a pattern of these words, each where it is a whole word; the first is tried first. None match nothing."""
    any_word = "|".join(map(re.escape, words)) if words else "(?!)"
    starts = "".join(sorted({re.escape(word[0]) for word in words}))
    return SteppingPattern(
        rf"(?<!\w)({any_word})(?!\w)",
        start=starts or "-",
        may_occur_in=lambda text: any(word in text for word in words),
    )


_SCHEME = r"(?<![A-Za-z0-9+.\-])[0-9+.\-]*+[A-Za-z][A-Za-z0-9+.\-]*+://"
_ODD_USER = r"[^\s\"'<>`@:/]+:"

USER_INFO = SteppingPattern(rf"({_SCHEME})([^\s/?#\"'<>`]+)@", run=r"A-Za-z0-9+.\-", mark=":")
ODD_USER_INFO = SteppingPattern(
    rf"({_SCHEME})({_ODD_USER}[^\s\"'<>`]*)@",
    run=r"A-Za-z0-9+.\-",
    mark=":",
    hopeless=rf"{_SCHEME}{_ODD_USER}[^\s\"'<>`@]*+",
)
"""A password that was not escaped, as people paste them into the addresses of databases."""

MEMBER = SteppingPattern(
    r"""((["'])([A-Za-z][\w.\-]*)\2\s*:\s*)(["'])(?!\4)((?>(?:\\.|(?!\4).)+)(?=\4)|.+(?=\4))""",
    may_occur_in=_holds(":"),
    start="\"'",
    flags=re.DOTALL,
)
"""A text that does not end, as of a JSON that was cut, ends at its last escaped quote."""

ASSIGNED = SteppingPattern(
    r"""(?<![\w.\-?&])((-{0,2}[A-Za-z][\w.\-]*+)=)("[^"]+"|'[^']+'|[^\s;&,"'<>]+)""",
    may_occur_in=_holds("="),
    run=r"\w.\-",
    mark="=",
)
OPTION_VALUE = SteppingPattern(
    r"""(?<!\S)((--?[A-Za-z][\w.\-]*+)\s++)("[^"]+"|'[^']+'|[^\s\-"']\S*)""", may_occur_in=_holds("-"), start=r"\-"
)
LABELLED = SteppingPattern(
    r"""(?<![\w.\-])(([A-Za-z][\w.\-]*+)\s*+:\s++)("[^"]+"|'[^']+'|[^\s,;"'<>{}\[\]()]+)""",
    may_occur_in=_holds(":"),
    run=r"\w.\-",
    mark=":",
)
OWN_TOKEN = SteppingPattern(r"\b(scanflow_(?:step\.)?[\w.\-]{20,})", may_occur_in=_holds("scanflow_"), run=r"\w")
HEADER = SteppingPattern(
    r"\b((?:authorization\s*[:=]\s*(?:\w+\s+)?)|bearer\s+)([\w.~+/=\-]{8,})",
    may_occur_in=lambda text: _has_any(text, ("authorization", "bearer")),
    run=r"\w",
    flags=re.IGNORECASE,
)
QUERY_VALUE = SteppingPattern(r"([?&;])([^\s=&;#?\"'<>]+)=([^\s&;#\"'<>]+)", start="?&;")

_WORDS = 'auth bearer cookie credential dsn pass pw secret token "env" tracker notify'.split()
_KIND_OF_KEY = re.compile(r"(?:access|account|api|encryption|hmac|master|private|signing|ssh)[^a-z\"]{0,2}\Z")
_LONGEST_KIND = len("encryption") + 2
_USER = re.compile(r"://[^/\"]*@")


def may_need_mask(text: str) -> bool:
    """Return whether a text has a sign of a secret: a word of a secret's name, credentials or a query of an address.

    Quick, and sometimes wrongly so.
    """
    if any(_names_secret(fold(block)) for block in _list_blocks(text)):
        return True
    return "://" in text and (_USER.search(text) is not None or _has_query(text))


def _has_any(text: str, words: tuple[str, ...]) -> bool:
    """Return whether one of these words of small ASCII letters stands in ``text``, in whatever letters."""
    return any(word in folded for folded in map(fold, _list_blocks(text)) for word in words)


def _names_secret(folded: str) -> bool:
    return any(word in folded for word in _WORDS) or any(
        _KIND_OF_KEY.search(folded, max(0, key.start() - _LONGEST_KIND), key.start())
        for key in re.finditer("key", folded)
    )


def _has_query(text: str) -> bool:
    """Return whether after an address's scheme, and before the next double quote, there is a sign of a query."""
    begin = text.find("://")
    while begin >= 0:
        end = text.find('"', begin)
        end = len(text) if end < 0 else end
        if any(text.find(word, begin, end) >= 0 for word in "?&;"):
            return True
        begin = text.find("://", end)
    return False


def _list_blocks(text: str) -> Iterator[str]:
    return (text[at : at + _BLOCK_LENGTH + _OVERLAP] for at in range(0, len(text), _BLOCK_LENGTH))


def fold(text: str) -> str:
    """Return a text in small letters, in those of ASCII also what ``re.IGNORECASE`` takes for them."""
    if not text.isascii():
        text = text.replace("\u0130", "i").replace("\u0131", "i").replace("\u017f", "s")
    return text.lower()
