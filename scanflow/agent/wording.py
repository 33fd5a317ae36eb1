"""Words that can be written down and sent, whatever users' code has made of them."""

from __future__ import annotations

__all__ = ["error_words", "writable"]


def writable(text: str) -> str:
    """Return a text without halves of characters, which no encoding has: each as ``\\ud83d``."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def error_words(error: BaseException) -> str:
    """Return an error's type and text; of one that has no text, or cannot say it, the type alone."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001  a user's own code, which must not end what tells of it
        text = ""
    return writable(f"{type(error).__name__}: {text}" if text else type(error).__name__)
