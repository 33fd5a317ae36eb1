"""The errors scanflow raises, in one tree ordered by who can act on them. It imports nothing of ours."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = [
    "AccessDeniedError", "AlreadyRunningError", "ForbiddenError", "InternalError", "InvalidError", "MissingExtraError",
    "NotFoundError", "OverLimitError", "ScanflowError", "ServiceFailedError", "StepFailedError", "TooLargeError",
    "UnavailableError", "UnsupportedError", "UsageError", "did_you_mean",
]  # fmt: skip


class ScanflowError(Exception):
    """Anything scanflow raises on purpose."""


class UsageError(ScanflowError):
    """Your input needs a change: the message says which."""


class InvalidError(UsageError, ValueError):
    """An invalid value. It is a ``ValueError`` too, so pydantic collects it during validation."""


class TooLargeError(InvalidError):
    """A value or a request that exceeds a limit of the server; the message names the limit."""


class NotFoundError(UsageError, LookupError):
    """A run, step, workflow, file or model that does not exist under that name."""


class AccessDeniedError(UsageError):
    """The token is missing or invalid, or the request comes from a place that is not allowed."""


class ForbiddenError(AccessDeniedError):
    """The token is valid, but its role or its team does not allow the request; the message names a role that does."""


class UnsupportedError(UsageError):
    """A field or a request that this backend does not support; it is never ignored silently."""


class MissingExtraError(UsageError):
    """An optional dependency is not installed; the message has the command that installs it."""


class StepFailedError(UsageError):
    """A run ended because a step of it failed."""


class ServiceFailedError(UsageError):
    """A service could not answer, because a component of its graph failed on the request."""


class UnavailableError(ScanflowError):
    """An external resource did not answer (a full disk, a tracker that is down). It may be temporary: try again."""


class OverLimitError(UnavailableError):
    """More at once than the caller's share of a server. Nothing was done: try again later, or with less."""


class AlreadyRunningError(UnavailableError):
    """Another process is driving this run."""


class InternalError(ScanflowError):
    """A defect of scanflow itself."""


def did_you_mean(word: str, candidates: Iterable[str]) -> str:
    """Return ``" Did you mean 'x'?"`` for the nearest known word, else the known words, else nothing."""
    words = list(candidates)
    near = difflib.get_close_matches(word, words, n=1, cutoff=0.6)
    if near:
        return f" Did you mean {near[0]!r}?"
    if words and len(words) <= 12:
        return f" Known: {', '.join(sorted(words))}."
    return ""
