"""Format errors of users' code as text that can be stored and sent, causes included."""

from __future__ import annotations


def escape_surrogates(text: str) -> str:
    """Escape lone surrogates, which no encoding has, as ``\\ud83d``."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def format_error(error: BaseException) -> str:
    """Return the type and text of an error and its causes: ``RuntimeError: no data, caused by OSError: disk full``.

    For an error without text, or whose ``__str__`` fails, the type alone.
    """
    parts: list[str] = []
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        text = _format_error(current)
        if not any(text and text in part for part in parts):  # else the error that it led to has the text
            parts.append(f"{type(current).__name__}: {text}" if text else type(current).__name__)
        current = current.__cause__
    return escape_surrogates(", caused by ".join(parts))


def shorten(text: str, most: int) -> str:
    """Shorten a text to at most ``most`` characters: its beginning and its end, where the cause is."""
    half = (most - 5) // 2
    return text if len(text) <= most else f"{text[:half]} ... {text[-half:]}"


def _format_error(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001  users' code, which must not break its own error report
        return ""
