"""The errors scanflow raises, in one tree ordered by who can act on them. It imports nothing of ours."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from types import TracebackType

__all__ = [
    "AccessDeniedError", "AlreadyRunningError", "ForbiddenError", "InternalError", "InvalidError", "MissingExtraError",
    "NotFoundError", "OverLimitError", "ScanflowError", "ServiceFailedError", "StepFailedError", "TooLargeError",
    "UnavailableError", "UnsupportedError", "UsageError", "did_you_mean",
]  # fmt: skip

_OURS = frozenset(("scanflow", *(f"scanflow_{name}" for name in ("agents", "client", "research", "server", "serving"))))
_LIBRARY_PATHS = ("/site-packages/", "/dist-packages/", "<frozen ", "/lib/python3.", "<string>")


class ScanflowError(Exception):
    """Anything scanflow raises on purpose."""

    def _render_traceback_(self) -> list[str]:
        """Return what IPython shows of it: the frames of the user's own code, and the message, which says what to do.

        Our frames, those of libraries that we call, and the errors that were raised there say nothing to its reader.
        """
        return _render_for_notebook(self)


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


def _render_for_notebook(error: BaseException) -> list[str]:
    from IPython import get_ipython

    shell, cause, is_suppressed = get_ipython(), error.__cause__, error.__suppress_context__
    before = _find_previous(error)
    while before is not None and not _is_raised_by_user(before):
        before = _find_previous(before)
    lines = [] if before is None else [*_render_for_notebook(before), "", "which led to:", ""]
    try:
        error.__cause__ = None  # what led to it is in the lines, as far as it is the user's
        own = _select_own_frames(error.__traceback__)
        assert shell is not None, "IPython alone renders errors so"
        return [*lines, *shell.InteractiveTB.structured_traceback(type(error), error, own, tb_offset=0)]
    finally:
        error.__cause__, error.__suppress_context__ = cause, is_suppressed


def _find_previous(error: BaseException) -> BaseException | None:
    return error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _is_raised_by_user(error: BaseException) -> bool:
    """Return whether an error was raised by the user's own code, or by a library that it called."""
    innermost = error.__traceback__
    while innermost is not None and innermost.tb_next is not None:
        innermost = innermost.tb_next
    own, is_users = _select_own_frames(error.__traceback__), False
    while own is not None:
        is_users = is_users or not _is_of_library(own)  # some libraries raise one error from another of their own
        if own.tb_next is None:
            break
        own = own.tb_next
    return is_users and own is not None and innermost is not None and own.tb_frame is innermost.tb_frame


def _is_of_library(frames: TracebackType) -> bool:
    return any(sign in frames.tb_frame.f_code.co_filename for sign in _LIBRARY_PATHS)


def _select_own_frames(frames: TracebackType | None) -> TracebackType | None:
    """Return a traceback without our frames, and those of libraries below them."""
    own, is_below = list[TracebackType](), False
    while frames is not None:
        is_ours = str(frames.tb_frame.f_globals.get("__name__", "")).partition(".")[0] in _OURS
        is_below = is_below or is_ours
        if not is_ours and not (is_below and _is_of_library(frames)):
            own.append(frames)
        frames = frames.tb_next
    chain: TracebackType | None = None
    for frame in reversed(own):
        chain = TracebackType(chain, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return chain


def end_sentence(text: str) -> str:
    """Return a text with a full stop, unless it ends with one or is a question."""
    return text if text.endswith((".", "?")) else f"{text}."


def did_you_mean(word: str, candidates: Iterable[str]) -> str:
    """Return ``" Did you mean 'x'?"`` for the nearest known word, else the known words, else nothing."""
    words = list(candidates)
    near = difflib.get_close_matches(word, words, n=1, cutoff=0.6)
    if near:
        return f" Did you mean {near[0]!r}?"
    if words and len(words) <= 12:
        return f" Known: {', '.join(sorted(words))}."
    return ""
