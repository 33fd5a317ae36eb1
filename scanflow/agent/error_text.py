"""Errors as text that can be written down and sent, whatever users' code has made of them, their cause included."""

from __future__ import annotations


def encodable(text: str) -> str:
    """Return a text without halves of characters, which no encoding has: each as ``\\ud83d``."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def error_text(error: BaseException) -> str:
    """Return an error's type and text, and those of its causes: ``RuntimeError: no data, by OSError: disk full``.

    Of an error that has no text, or cannot say it, the type alone.
    """
    parts: list[str] = []
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        text = _text(found)
        if not any(text and text in part for part in parts):  # else it was told with the one that it led to
            parts.append(f"{type(found).__name__}: {text}" if text else type(found).__name__)
        found = found.__cause__
    return encodable(", by ".join(parts))


def shortened(text: str, most: int) -> str:
    """Return at most ``most`` characters of a text: its beginning and its end, where the cause is."""
    half = (most - 5) // 2
    return text if len(text) <= most else f"{text[:half]} ... {text[-half:]}"


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001  a user's own code, which must not end what tells of it
        return ""
