"""Lists that a notebook shows as the table that the command line prints, and that turn into DataFrames."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, Generic, Self, SupportsIndex, TypeVar, overload

from pydantic import BaseModel

from scanflow.errors import MissingExtraError
from scanflow.installation import explain_install
from scanflow.text.masking import mask_secrets

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")

_TIMES = frozenset(
    (
        "at",
        "began",
        "created",
        "ended",
        "expires",
        "last",
        "next",
        "retry_at",
        "revoked",
        "since",
        "started",
        "submitted",
    )
)
"""The names of fields that are seconds since the epoch."""


class Listing(list[T], Generic[T]):
    """A list that shows itself as a table. It is equal to a list of the same items; a slice of it is one, too."""

    def __init__(
        self, items: Iterable[T] = (), shown_by: str = "", /, links: Mapping[str, str] | None = None, **options: Any
    ) -> None:
        """Create a list.

        Args:
            items: Its items.
            shown_by: The function of :mod:`scanflow_client.formatting` that makes a screen of them:
                ``run_text:format_runs``. It is imported when the list is shown.
            links: Addresses by the names that lead to them in the table.
            options: Arguments for that function.
        """
        super().__init__(items)
        self.shown_by, self.links, self.options = shown_by, dict(links or {}), options

    @overload
    def __getitem__(self, at: SupportsIndex) -> T: ...
    @overload
    def __getitem__(self, at: slice[Any, Any, Any]) -> Self: ...
    def __getitem__(self, at: SupportsIndex | slice[Any, Any, Any]) -> T | Self:
        if isinstance(at, slice):
            return type(self)(super().__getitem__(at), self.shown_by, links=self.links, **self.options)
        return super().__getitem__(at)

    def to_pandas(self) -> pd.DataFrame:
        """Return a DataFrame with a row for each item and a column for each field; what looks like a secret is masked.

        A field of a record inside a record is a column with both names: ``intent.primitive``. Other lists and mappings
        stay as they are. Times are datetimes in UTC, and whole numbers ``Int64``, so that those that are absent are NA.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        try:
            import pandas as pd
        except ImportError as error:
            raise MissingExtraError(
                f"A DataFrame needs pandas, which is not installed. {explain_install(package='pandas')}"
            ) from error
        rows = [mask_secrets(dict(_list_cells(item))) for item in self]
        names = list(dict.fromkeys(name for row in rows for name in row))
        columns = {name: [row.get(name) for row in rows] for name in names}
        for name in names:  # a record that some items do not have
            if any(str(other).startswith(f"{name}.") for other in names) and all(
                value is None for value in columns[name]
            ):
                del columns[name]
        return pd.DataFrame({name: _build_column(str(name), values) for name, values in columns.items()})


def _build_column(name: str, values: list[Any]) -> pd.Series:
    import pandas as pd

    kinds = {type(value) for value in values if value is not None}
    if name.rpartition(".")[2] in _TIMES and kinds <= {int, float}:
        times = pd.to_datetime(pd.Series(values, dtype="float64"), unit="s", utc=True, errors="coerce")
        return times.dt.round("us")  # more digits than a float of seconds has
    if kinds == {int} and all(value is None or abs(value) < 2**63 for value in values):
        return pd.Series(values, dtype="Int64")
    if kinds == {bool}:
        return pd.Series(values, dtype="boolean")
    return pd.Series(values, dtype="float64" if kinds and kinds <= {int, float} else None)


def _list_cells(item: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the columns of an item, those of records inside it with their names before."""
    for name, value in _read_fields(item).items():
        if isinstance(value, BaseModel) or (is_dataclass(value) and not isinstance(value, type)):
            yield from _list_cells(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _read_fields(item: Any) -> Mapping[str, Any]:
    if isinstance(item, BaseModel):
        return {name: getattr(item, name) for name in type(item).model_fields} | (item.model_extra or {})
    if is_dataclass(item) and not isinstance(item, type):
        return {field.name: getattr(item, field.name) for field in fields(item)}
    return item if isinstance(item, Mapping) else {"value": item}
