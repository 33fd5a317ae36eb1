"""What goes wrong with one of many things that a controller looks at is told, and the others are still looked at."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from scanflow.errors import ScanflowError

_log = logging.getLogger(__name__)


class ErrorIsolation:
    """Things looked at again and again, each apart from the others."""

    def __init__(self) -> None:
        self._told: dict[str, str] = {}

    @contextmanager
    def of(self, what: str) -> Iterator[None]:
        """Look inside at ``what``, which begins a line of the log: what is raised there is told, and ends nothing else.

        It is told once, until it is something else or all went well in between.
        """
        try:
            yield
        except (Exception, SystemExit) as error:  # noqa: BLE001  the edge of a loop that has to go on
            # What we raise on purpose says all that is to be known, and may pass; all else may be a defect.
            known = isinstance(error, ScanflowError)
            text = str(error) if known else f"{type(error).__name__}: {error}"
            if self._told.get(what) != text:
                level = logging.WARNING if known else logging.ERROR
                _log.log(level, "%s is looked at again later: %s", what, text, exc_info=None if known else error)
            self._told[what] = text
        else:
            self._told.pop(what, None)
