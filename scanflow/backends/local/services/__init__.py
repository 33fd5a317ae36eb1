"""Online workflows on one machine: a supervisor for each, and the instances it keeps serving.

:class:`LocalServices` is how they are deployed and changed. It is found lazily: a supervisor does not need it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scanflow.backends.local.services.api import LocalServices

__all__ = ["LocalServices"]


def __getattr__(name: str) -> object:
    if name == "LocalServices":
        from scanflow.backends.local.services.api import LocalServices

        return LocalServices
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
