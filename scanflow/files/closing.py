"""Objects that a ``with`` block closes."""

from __future__ import annotations

from types import TracebackType
from typing import Self


class Closing:
    """What is closed at the end of a ``with`` block, however that ends."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.close()
