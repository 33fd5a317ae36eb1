"""How a secret may be spelled in what is printed, and which parts of it may be printed alone. Standard library only."""

from __future__ import annotations

import json
import re
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote

_MIN_BASE64_LENGTH = 6
"""A shorter part of a text in base64 stands in too much that is no secret."""

_PEM_BODY = re.compile(r"-----BEGIN [^-]+-----(.+?)-----END ", re.DOTALL)
_PEM_BREAK = re.compile(r"\s|\\[nr]")
_PEM_WIDTHS = (64, 76)
_QUOTES_IN_HTML: tuple[dict[str, str], ...] = ({}, {'"': "&quot;", "'": "&#x27;"}, {'"': "&#34;", "'": "&#39;"})
"""As a text, as ``html.escape`` and as Jinja write them."""

_HTML = [str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", **quotes}) for quotes in _QUOTES_IN_HTML]

_PLAIN = re.compile(r"[ !#-&(-\[\]-~]*")
"""What no literal escapes: ASCII without quotes and backslashes."""

_PERCENT = re.compile("%[0-9A-F]{2}")


def list_spellings(secret: str) -> set[str]:
    """Return a text as it is, and as it stands in literals, JSON, JSON in JSON, addresses, HTML and a shell's words."""
    once = spell_literally(secret)
    twice = {spelling for literal in once for spelling in spell_literally(literal)}
    return twice.union(*(spell(literal) for literal in once for spell in (_spell_in_address, _spell_in_markup)))


def spell_literally(text: str) -> set[str]:
    """Return a text as it is, and as it stands in Python's literals, of text and of bytes, and in JSON."""
    if _PLAIN.fullmatch(text):
        return {text}
    single_quoted = repr(f"{text}'\"")[1:-4]  # in a longer text with both kinds of quotes, this one is escaped
    encoded = repr(text.encode(errors="surrogatepass"))[2:-1]
    in_json = (json.dumps(text, ensure_ascii=ascii_only)[1:-1] for ascii_only in (True, False))
    return {text, repr(text)[1:-1], ascii(text)[1:-1], single_quoted, encoded, *in_json}


def list_base64(secret: str) -> set[str]:
    """Return what stands in base64 of any text that holds the secret: its characters that depend on it alone, after
    none, one or two bytes of another; and it alone, with its end."""
    content = secret.encode(errors="replace")
    spellings = {encode(content).decode() for encode in (b64encode, urlsafe_b64encode)}
    for before in range(3):
        start, end = -(-8 * before // 6), 8 * (before + len(content)) // 6
        for encode in (b64encode, urlsafe_b64encode):
            spellings.add(encode(bytes(before) + content)[start:end].decode())
    return {spelling for spelling in spellings if len(spelling) >= _MIN_BASE64_LENGTH}


def list_lines(text: str) -> list[str]:
    """Return the lines of a text without space around them; of a key in PEM also its body in one line, and as it is
    wrapped elsewhere."""
    bodies = [_PEM_BREAK.sub("", body) for body in _PEM_BODY.findall(text)]
    wrapped = (body[at : at + width] for body in bodies for width in _PEM_WIDTHS for at in range(0, len(body), width))
    return [*map(str.strip, text.splitlines()), *bodies, *wrapped]


def list_json_texts(secret: str) -> Iterator[tuple[str | None, str]]:
    """Yield the texts in a secret that is a JSON object or list, with the names of their members. None: no name."""
    if secret.lstrip()[:1] not in {"{", "["}:
        return
    try:
        yield from _list_texts(None, json.loads(secret))
    except (ValueError, RecursionError):
        return  # it only begins so


def _list_texts(name: str | None, value: Any) -> Iterator[tuple[str | None, str]]:
    if isinstance(value, str):
        yield name, value
    elif isinstance(value, Mapping | list):
        members: Iterable[tuple[str | None, Any]] = (
            value.items() if isinstance(value, Mapping) else ((name, inner) for inner in value)
        )
        for key, inner in members:
            yield from _list_texts(key, inner)


def _spell_in_address(text: str) -> Iterator[str]:
    for safe in ("", "/"):
        quoted = quote(text, safe=safe, errors="replace")
        for spelling in (quoted, quoted.replace("%20", "+")):
            yield from (spelling, _PERCENT.sub(lambda match: match[0].lower(), spelling))


def _spell_in_markup(text: str) -> Iterator[str]:
    yield from map(text.translate, _HTML)
    yield from (text.replace("'", quoted) for quoted in ("'\"'\"'", "'\\''"))  # shlex.quote, and bash -x
