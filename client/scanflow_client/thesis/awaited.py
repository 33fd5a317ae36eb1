"""An available value that may also be awaited."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sized
from typing import Any, Generic, TypeVar, cast

T = TypeVar("T")


class Awaited(Generic[T]):
    """An available value that may also be awaited, as in the thesis' listings."""

    def __init__(self, value: T) -> None:
        self.value = value

    def __await__(self) -> Generator[None, None, T]:
        yield from ()  # makes this a generator, which is what await wants
        return self.value

    def __getattr__(self, name: str) -> Any:
        if name == "value":  # while a copy of this is being made
            raise AttributeError(name)
        return getattr(self.value, name)

    def __iter__(self) -> Iterator[Any]:
        return iter(cast(Iterable[Any], self.value))

    def __len__(self) -> int:
        return len(cast(Sized, self.value))

    def __getitem__(self, key: Any) -> Any:
        return cast(Any, self.value)[key]

    def __eq__(self, other: object) -> bool:
        return bool(self.value == (other.value if isinstance(other, Awaited) else other))

    def __hash__(self) -> int:
        return hash(self.value)

    def __str__(self) -> str:
        return str(self.value)

    def __repr__(self) -> str:
        return repr(self.value)
