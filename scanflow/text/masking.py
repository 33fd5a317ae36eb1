"""Masks what looks like a secret in documents and texts. Standard library only: a step's process imports it.

In a document three things are masked: values under names that look secret, all values of an ``env``, and the
credentials in addresses; of a tracker's address also its query, and of a webhook's all but the host. A :class:`Masker`
also masks these values wherever else they stand: in an error, in a traceback, in a log.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any
from urllib.parse import unquote

from scanflow.text import secret_patterns
from scanflow.text.secret_names import is_token_count, looks_secret, names_secret, takes_secret
from scanflow.text.secret_patterns import SteppingPattern, may_need_mask
from scanflow.text.spellings import list_base64, list_json_texts, list_lines, list_spellings, spell_literally

SECRET_KEY = "$secret"  # noqa: S105
"""The key of a reference to a secret, in files."""

STARS = "***"

MIN_SECRET_LENGTH = 4
"""A shorter value is masked where it is given, and not where it stands in a text."""

MIN_LENGTH_ANYWHERE = 8
"""A shorter value is masked in a text only as a whole word. A value of ``env`` whose name does not look secret is not
masked in texts if it is shorter."""

_MIN_USER_LENGTH = 16
"""A shorter user name in an address is no token, and is not masked elsewhere."""

_MAX_HELD = 16 * 1024
"""How much of an unfinished line of a log is held back, in bytes."""

_MIN_CUT_LENGTH = 4
"""The shortest part of a secret that is masked beside an ellipsis."""

_OPTION = re.compile(r"(--?[A-Za-z][\w.\-]*)(?:=(.*))?", re.DOTALL)
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*://")
_REFERENCE = re.compile(r"(env|file|k8s):.+")
_VARIABLE = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]*")
_NUMBER_OR_WORD = re.compile(r"[-+0-9.,:_eE]+|true|false|none|null|yes|no|on|off", re.IGNORECASE)
_BYTES = "latin-1"
_ELLIPSES = ("…", "...")


def mask_secrets(document: Any) -> Any:
    """Return a copy of a JSON document with what looks like a secret masked. Names and references stay visible."""
    return _DocumentMask().mask(document)


def mask_text(text: str) -> str:
    """Return ``text`` with what looks like a secret masked: our own tokens, credentials in addresses, what it gives to
    a name that looks secret (``--token=...``, ``password: ...``, ``Authorization: Bearer ...``)."""
    return str(mask_secrets(secret_patterns.OWN_TOKEN.substitute(lambda _: STARS, text)))


def mask_addresses(text: str) -> str:
    """Return ``text`` with the credentials in addresses masked: ``postgresql://***@host/db``, ``?token=***``."""
    return _DocumentMask().mask_text(text)


def mask_place(address: str) -> str:
    """Return a tracker's or database's address without its credentials and its query."""
    return _DocumentMask().mask_place(address)


def find_mask(document: Any, path: str = "") -> str | None:
    """Return where a document has a masked value, as ``workflows.0.nodes.1.env.KEY``; None: nowhere."""
    if isinstance(document, str):
        masked = document == STARS or (STARS in document and _ADDRESS.match(document) is not None)
        return path if masked else None
    members = document.items() if isinstance(document, Mapping) else enumerate(document) if _is_list(document) else ()
    for name, inner in members:
        if (place := find_mask(inner, f"{path}.{name}" if path else str(name))) is not None:
            return place
    return None


class Masker:
    """Masks the secrets of some documents wherever they stand."""

    def __init__(self, *documents: Any, all_texts: bool = True) -> None:
        """Collect the secrets of documents.

        Args:
            documents: Applications, parameters of runs, arguments of primitives.
            all_texts: Whether all texts of a secret that is JSON are secrets. Else those are that are in a list or
                under a name that looks secret, and keys in PEM.
        """
        collected = _DocumentMask()
        for document in documents:
            collected.mask(document)
        secrets = {variant for secret in collected.secrets for variant in _list_variants(secret, all_texts)}
        usable = {text for text in secrets if len(text) >= MIN_SECRET_LENGTH and not _NUMBER_OR_WORD.fullmatch(text)}
        variables = {variant for value in collected.variables for variant in _list_variants(value, all_texts)}
        anywhere = {text for text in usable | variables if len(text) >= MIN_LENGTH_ANYWHERE}
        self._set({text for text in anywhere if not _NUMBER_OR_WORD.fullmatch(text)}, usable)

    @classmethod
    def from_values(cls, values: Iterable[str], *documents: Any, all_texts: bool = True) -> Masker:
        """Return the masker of values that are known to be secrets, numbers too, and of what looks so in documents."""
        values = list(values)
        masker = cls(*documents, {"secrets": values}, all_texts=all_texts)  # of an address, its password too
        texts = {value: set(_list_secret_texts(value, all_texts)) for value in values}
        declared = {spelling for value in values for spelling in list_spellings(value) if spelling}
        # The lines of JSON say less: they are masked as those of a document are.
        lines = {line for value in values if not texts[value] for line in list_lines(value)}
        # As ``Authorization: Basic`` has them; of an address, what is before its host.
        accounts = {match[2] for value in values if (match := secret_patterns.USER_INFO.whole.match(value)) is not None}
        encoded = {
            spelling
            for text in {*values, *accounts}.union(*texts.values())
            if len(text) >= MIN_SECRET_LENGTH
            for spelling in list_base64(text)
        }
        long = {text for text in declared | lines | encoded if len(text) >= MIN_SECRET_LENGTH}
        masker._set({*masker.anywhere, *long}, {*masker._usable, *declared} - long)
        return masker

    def _set(self, anywhere: set[str], usable: set[str]) -> None:
        self._usable = usable
        # The longest first, as a shorter one may be a part of it.
        self.anywhere = tuple(sorted(anywhere, key=lambda text: (-len(text), text)))
        self._shortest = min(map(len, anywhere), default=0)
        self.words = tuple(sorted(usable - anywhere, key=lambda text: (-len(text), text)))
        self._words = secret_patterns.build_exact_pattern(self.words)

    def __bool__(self) -> bool:
        return bool(self.anywhere or self.words)

    def occurs_in(self, text: str) -> bool:
        """Return whether a secret stands in ``text``, or may do so."""
        return any(secret in text for secret in self.anywhere) or self._words.occurs_in(text)

    def occurs_in_bytes(self, content: bytes) -> bool:
        """Return whether a secret stands in ``content``, such as a pickle."""
        text = content.decode(_BYTES)
        words = secret_patterns.build_exact_pattern(tuple(map(_spell_bytes, self.words)))
        return any(_spell_bytes(secret) in text for secret in self.anywhere) or words.occurs_in(text)

    def mask_text(self, text: str) -> str:
        """Return ``text`` without the secrets, and without what looks like one."""
        return self._mask_text(mask_text(text))

    def mask(self, document: Any) -> Any:
        """Return a copy of a JSON document without secrets: see :func:`mask_secrets`; keys stay as they are."""
        return self.mask_values(mask_secrets(document))

    def mask_outputs(self, value: Any) -> Any:
        """Return a copy of what steps returned: they are data, so that only texts under names that look secret, and
        texts that hold one, are masked; not a list of ``tokens``."""
        if isinstance(value, Mapping):
            return {
                name: STARS if isinstance(inner, str) and looks_secret(str(name)) else self.mask_outputs(inner)
                for name, inner in value.items()
            }
        if _is_list(value):  # of many numbers, often
            return [inner if isinstance(inner, int | float) else self.mask_outputs(inner) for inner in value]
        return self.mask_values(value)

    def mask_values(self, value: Any) -> Any:
        """Return a copy of a JSON document in which texts are masked, whatever their names."""
        if isinstance(value, str):
            return self.mask_text(value)
        if isinstance(value, Mapping):
            return {name: self.mask_values(inner) for name, inner in value.items()}
        return [self.mask_values(inner) for inner in value] if _is_list(value) else value

    def _mask_text(self, text: str) -> str:
        if len(text) >= self._shortest:
            for secret in self.anywhere:
                if secret in text:
                    text = text.replace(secret, STARS)
        text = self._words.substitute(lambda _: STARS, text)
        return self._mask_cut(text) if self.anywhere and any(mark in text for mark in _ELLIPSES) else text

    def _mask_cut(self, text: str) -> str:
        """Mask the parts of secrets that were cut by an ellipsis."""
        begun = [secret for secret in self.anywhere if secret[:_MIN_CUT_LENGTH] in text]
        ended = [secret for secret in self.anywhere if secret[-_MIN_CUT_LENGTH:] in text]
        if not begun and not ended:
            return text
        mark, dots = _ELLIPSES
        pieces = [piece.split(dots) for piece in text.split(mark)]
        parts = [part for piece in pieces for part in piece]
        marks = [either for piece in pieces for either in (*[dots] * (len(piece) - 1), mark)]
        marks[-1] = ""
        for index in range(len(parts)):
            if index + 1 < len(parts) and (cut := _measure_start(parts[index], begun)) >= _MIN_CUT_LENGTH:
                parts[index] = parts[index][:-cut] + STARS
            if index and (cut := _measure_end(parts[index], ended)) >= _MIN_CUT_LENGTH:
                parts[index] = STARS + parts[index][cut:]
        return "".join(part + mark for part, mark in zip(parts, marks, strict=True))


class MaskedStream:
    """Masks the bytes of a log as they arrive, line by line; a secret may be split between two blocks."""

    def __init__(self, masker: Masker) -> None:
        self._held = ""
        self.set_masker(masker)

    def set_masker(self, masker: Masker) -> None:
        """Mask other secrets from now on, in what is held back too."""
        # A character for each byte: a log may be anything, and a block may end within a character.
        self._secrets = tuple(map(_spell_bytes, masker.anywhere))
        self._words = secret_patterns.build_exact_pattern(tuple(map(_spell_bytes, masker.words)))

    @property
    def margin(self) -> int:
        """How many bytes before a part of a log tell what is secret at the part's beginning."""
        return _MAX_HELD + max(map(len, self._secrets), default=0)

    def feed(self, block: bytes, *, last: bool = False) -> bytes:
        """Return what can be shown by now: all but an unfinished line, and the beginning of what may become a
        secret."""
        text, self._held = self._held + block.decode(_BYTES), ""
        if not last:
            end = max(text.rfind("\n"), text.rfind("\r")) + 1
            if len(text) - end < _MAX_HELD:
                text, self._held = text[:end], text[end:]
        for secret in self._secrets:
            text = text.replace(secret, STARS)
        text = self._words.substitute(lambda _: STARS, text)
        if not last and (cut := _measure_start(text, self._secrets)):
            text, self._held = text[:-cut], text[-cut:] + self._held
        return mask_text(text).encode(_BYTES)


class _DocumentMask:
    """Masks documents, and collects what it masks."""

    def __init__(self) -> None:
        self.secrets: set[str] = set()
        self.variables: set[str] = set()
        """Values of ``env`` whose names do not look secret."""

    def mask(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.mask_text(self._mask_named(value) if may_need_mask(value) else value)
        if isinstance(value, Mapping):
            return {name: self._mask_member(str(name), inner) for name, inner in value.items()}
        return self._mask_items(value) if _is_list(value) else value

    def mask_text(self, text: str) -> str:
        if "://" not in text:
            return text
        if "@" in text:
            text = secret_patterns.ODD_USER_INFO.substitute(self._mask_user_info, text)
            text = secret_patterns.USER_INFO.substitute(self._mask_user_info, text)
        if "=" in text:
            text = secret_patterns.QUERY_VALUE.substitute(self._mask_query_value, text)
        return text

    def _mask_named(self, text: str) -> str:
        """Mask what a text gives to a name that looks secret: an assignment, an option, a member of JSON, a header."""
        for pattern, name, value, is_likely in _NAMED:
            replace = partial(self._mask_named_value, name=name, value=value, is_likely=is_likely)
            text = pattern.substitute(replace, text)
        return text

    def _mask_named_value(
        self, match: re.Match[str], *, name: int, value: int, is_likely: Callable[[str], bool]
    ) -> str:
        text = match[value].strip("\"'")
        if (name and not takes_secret(match[name], text)) or not is_likely(match[value]):
            return match[0]
        if text.startswith(STARS) or _REFERENCE.fullmatch(text):
            return match[0]
        self._collect(text, self.secrets)
        return match[0][: match.start(value) - match.start()] + STARS

    def mask_place(self, address: str) -> str:
        before, mark, query = address.partition("?")
        self._collect_query(query)
        return self.mask_text(before) + (f"{mark}{STARS}" if query else "")

    def _mask_items(self, values: Iterable[Any]) -> list[Any]:
        """Mask a list, in which a secret may follow its option, as in a command: ``--token``, ``--api-key=``."""
        masked, option = [], ""
        for value in values:
            text = value if isinstance(value, str) else ""
            match = _OPTION.fullmatch(text)
            if match is not None and match[2] is not None and takes_secret(match[1], match[2]):
                masked.append(f"{match[1]}={self._hide(match[2], self.secrets)}")
            elif text and match is None and takes_secret(option, text):
                masked.append(self._hide(text, self.secrets))
            else:
                masked.append(self.mask(value))
            option = match[1] if match is not None and match[2] is None else ""
        return masked

    def _mask_member(self, name: str, value: Any) -> Any:
        if name == "env" and isinstance(value, Mapping):
            return {key: self._hide_variable(str(key), inner) for key, inner in value.items()}
        if name == "notify" and _is_list(value):
            return [self._mask_webhook(inner) for inner in value]
        if name == "auth" and isinstance(value, str) and _REFERENCE.fullmatch(value):
            return value  # of a service: where its token is
        if name in {"tracker", "tracker_uri"}:
            if isinstance(value, Mapping) and isinstance(value.get("uri"), str):
                return {**self.mask(value), "uri": self.mask_place(value["uri"])}
            return self.mask_place(value) if isinstance(value, str) else self.mask(value)
        is_secret = takes_secret(name, value) if isinstance(value, str) else looks_secret(name)
        if is_secret and not is_token_count(name, value):
            return self._hide(value, self.secrets)
        return self.mask(value)

    def _hide_variable(self, name: str, value: Any) -> Any:
        return self._hide(value, self.secrets if looks_secret(name) else self.variables)

    def _hide(self, value: Any, collected: set[str]) -> Any:
        if isinstance(value, Mapping):
            # A reference to an output says where the secret comes from, and not what it is.
            is_reference = "$from" in value or set(value) == {SECRET_KEY}
            return (
                dict(value) if is_reference else {name: self._hide(inner, collected) for name, inner in value.items()}
            )
        if _is_list(value):
            return [self._hide(inner, collected) for inner in value]
        if value is None or isinstance(value, bool) or (isinstance(value, str) and _VARIABLE.fullmatch(value)):
            return value
        self._collect(str(value), collected)
        self.mask(value)  # the password of an address is also masked alone
        return STARS

    def _mask_webhook(self, webhook: Any) -> Any:
        if not isinstance(webhook, Mapping):
            return self.mask(webhook)
        masked = self.mask(webhook)
        for name in ("url", "secret"):
            value = webhook.get(name)
            if isinstance(value, str):
                masked[name] = value if _REFERENCE.fullmatch(value) else self._mask_webhook_address(value)
        return masked

    def _mask_webhook_address(self, address: str) -> str:
        scheme, slashes, rest = address.partition("://")
        if not slashes:
            return str(self._hide(address, self.secrets))
        host, slash, path = rest.partition("/")
        self.mask_text(address)
        if slash:
            self.secrets.add(slash + path)
            self.secrets.update(part for part in re.split(r"[/?&=]", path) if len(part) >= _MIN_USER_LENGTH)
        host, mark, query = host.partition("?")
        self._collect_query(query)
        return f"{scheme}{slashes}{host.rpartition('@')[2]}" + (f"/{STARS}" if path or mark else slash)

    def _collect_query(self, query: str) -> None:
        for member in filter(None, re.split(r"[&;]", query)):
            name, _, value = member.partition("=")
            self._collect(value, self.secrets if names_secret(name) else self.variables)

    def _mask_user_info(self, match: re.Match[str]) -> str:
        user, colon, password = match[2].partition(":")
        if colon:
            self._collect(password, self.secrets)
        if len(user) >= _MIN_USER_LENGTH:
            self._collect(user, self.secrets)
        return f"{match[1]}{STARS}@"

    def _mask_query_value(self, match: re.Match[str]) -> str:
        if not names_secret(match[2]):
            return match[0]
        self._collect(match[3], self.secrets)
        return f"{match[1]}{match[2]}={STARS}"

    @staticmethod
    def _collect(text: str, collected: set[str]) -> None:
        collected.update({text, unquote(text)} - {STARS})


def _is_no_plain_word(value: str) -> bool:
    """Whether what follows an option in a text is a value, and not the sentence that goes on: ``--token is missing``"""
    return len(value) >= MIN_LENGTH_ANYWHERE or re.fullmatch(r"[a-z]+[.,;:]?", value) is None


def _mixes_characters(value: str) -> bool:
    """Whether what follows a name with a colon is a value, and not a message: ``invalid token: unexpected end``"""
    return value[0] in "\"'" or (len(value) >= 6 and re.search(r"\d", value) is not None and not value.isdigit())


_NAMED: tuple[tuple[SteppingPattern, int, int, Callable[[str], bool]], ...] = (
    (secret_patterns.MEMBER, 3, 5, bool),
    (secret_patterns.ASSIGNED, 2, 3, bool),
    (secret_patterns.OPTION_VALUE, 2, 3, _is_no_plain_word),
    (secret_patterns.LABELLED, 2, 3, _mixes_characters),
    (secret_patterns.HEADER, 0, 2, bool),
)
"""Patterns, the groups with the name and the value, and whether a value is likely one."""


def _spell_bytes(text: str) -> str:
    return text.encode(errors="surrogatepass").decode(_BYTES)


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


def _list_variants(secret: str, all_texts: bool) -> Iterator[str]:
    """Yield how a secret, the texts in it and their lines are spelled in what is printed."""
    for text in (secret, *_list_secret_texts(secret, all_texts)):
        yield from list_spellings(text)
        for line in list_lines(text):
            yield from spell_literally(line)


def _list_secret_texts(secret: str, all_texts: bool) -> Iterator[str]:
    for name, text in list_json_texts(secret):
        if all_texts or name is None or takes_secret(name, text) or "-----BEGIN " in text:
            yield text


def _measure_start(text: str, secrets: Iterable[str]) -> int:
    """Return how much of the end of ``text`` is the beginning of a secret, the longest of any."""
    longest = 0
    for secret in secrets:
        start = text.find(secret[0], max(0, len(text) - len(secret) + 1))
        while 0 <= start < len(text) - longest:
            if secret.startswith(text[start:]):
                longest = len(text) - start
            start = text.find(secret[0], start + 1)
    return longest


def _measure_end(text: str, secrets: Iterable[str]) -> int:
    """Return how much of the beginning of ``text`` is the end of a secret, the longest of any."""
    longest = 0
    for secret in secrets:
        end = text.rfind(secret[-1], 0, len(secret) - 1) + 1
        while end > longest:
            if secret.endswith(text[:end]):
                longest = end
            end = text.rfind(secret[-1], 0, end - 1) + 1
    return longest
