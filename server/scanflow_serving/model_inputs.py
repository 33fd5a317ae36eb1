"""What a registered model is called with: tables whose columns go by name, in the model's order and types."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import date, datetime
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from scanflow.errors import did_you_mean
from scanflow_serving.inference_problems import invalid
from scanflow_serving.messages import Tensor
from scanflow_serving.signature import UNDECLARED, NodeSignature, TensorSpec, cast

_CLOCKS: Final = frozenset({"now", "today"})
"""What pandas takes for a moment, and is another with each request."""

_DATETIME_EXAMPLE: Final = "2024-03-01T12:30:00"
_GAP: Final = "NaT"
_ISO: Final = re.compile(r"NaT|-?\d{4,}(-\d\d){0,2}(T\d\d(:\d\d(:\d\d(\.\d{1,9})?)?)?)?")
_UNITS: Final = frozenset({"Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns"})
_MICROSECOND_DIGITS: Final = 6
_NAIVE: Final = (
    f"a date and time without a time zone, as a model without a signature takes it. Send ISO 8601: "
    f"{_DATETIME_EXAMPLE!r}; a column with a zone in UTC: .dt.tz_convert(None)"
)
_BOOSTING: Final = frozenset({"catboost", "lightgbm", "xgboost"})
_NUMBERED: Final = {"catboost": re.compile(r"\d+"), "lightgbm": re.compile(r"Column_\d+")}
"""Names that they make up for the columns of an array."""


def list_trained_names(model: Any) -> tuple[str, ...]:
    """Return the columns that a model of scikit-learn or of gradient boosting was trained with, in their order; empty:
    it does not know them."""
    library = type(model).__module__.partition(".")[0]
    own = ("feature_names", "feature_names_", "feature_name") if library in _BOOSTING else ()
    for attribute in ("feature_names_in_", *own):
        names: Any = getattr(model, attribute, None)
        names = names() if callable(names) else names
        if names is not None and len(names):
            found = tuple(map(str, names))
            made_up = library in _NUMBERED and all(map(_NUMBERED[library].fullmatch, found))
            return () if made_up else found
    return ()


def _spell(name: str) -> str:
    """Return a column's name as LightGBM stores it."""
    return name.replace(" ", "_")


class ModelInputs:
    """Converts the values of requests for one model."""

    def __init__(
        self,
        signature: NodeSignature = UNDECLARED,
        *,
        trained_names: Sequence[str] = (),
        follows_node: bool = False,
        who: str = "The model",
    ) -> None:
        """``trained_names``: the columns that the model was trained with, in their order, if it knows them;
        ``follows_node``: its input is another node's result, which may have columns of its own."""
        self._signature = signature
        self._specs = {spec.name: spec for spec in signature.inputs} if signature.table else {}
        self._trained = tuple(trained_names)
        self._follows_node = follows_node
        self._who = who

    @property
    def names(self) -> tuple[str, ...]:
        """The columns by their names, in the model's order; empty: it knows none."""
        declared = tuple(self._specs)
        return (self._order(declared) or declared) if declared else self._trained

    @property
    def is_reordered(self) -> bool:
        """Whether the model was trained with the columns of the signature in another order."""
        return bool(self._specs) and self.names != tuple(self._specs)

    def _order(self, names: Collection[str]) -> tuple[str, ...]:
        """Return names in the order of training; empty: the model was trained with others, or does not know."""
        if set(names) == set(self._trained):
            return self._trained
        spelled = {_spell(name): name for name in names}
        trained = [_spell(name) for name in self._trained]
        return tuple(map(spelled.__getitem__, trained)) if sorted(spelled) == sorted(trained) else ()

    def read_columns(self, value: Any, names: Sequence[str] = ()) -> dict[str, NDArray[Any]] | None:
        """Return a value as columns in the model's order; None: it is no table of named columns.

        Raises:
            ProblemError: a column is missing or unknown, or its values do not fit.
        """
        columns = self._split(value, names)
        if columns is None:
            return None
        if self.names:
            columns = self._arrange(columns)
        return {name: self._convert(name, column) for name, column in columns.items()}

    def make_frame(self, columns: Mapping[str, NDArray[Any]]) -> Any:
        import pandas as pd

        frame = pd.DataFrame(dict(columns))
        if self._signature.numbered:
            frame.columns = pd.RangeIndex(frame.shape[1])
        return frame

    def make_matrix(self, columns: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        return np.column_stack(list(columns.values()))

    def make_records(self, columns: Mapping[str, NDArray[Any]]) -> list[dict[str, Any]]:
        rows = zip(*(to_plain_values(column) for column in columns.values()), strict=True)
        return [dict(zip(columns, row, strict=True)) for row in rows]

    def _split(self, value: Any, names: Sequence[str]) -> dict[str, Any] | None:
        if isinstance(value, dict):
            arrays = {str(name): np.asarray(column) for name, column in value.items()}
            is_column = all(_is_column(array) for array in arrays.values())
            return arrays if is_column and len({len(array) for array in arrays.values()}) == 1 else None
        array = np.asarray(value)
        known = self.names
        if array.ndim == 1 and len(known) == 1 and self._specs:
            return {known[0]: array}
        if array.ndim != 2:
            return None
        if len(names) == array.shape[1] and self._may_name(names):
            if twice := next((name for name in names if list(names).count(name) > 1), None):
                raise invalid(f"The column {twice!r} is named twice.")
            return {str(name): array[:, place] for place, name in enumerate(names)}
        order = tuple(self._specs) or known
        if len(order) != array.shape[1]:
            return None
        return {name: array[:, place] for place, name in enumerate(order)}

    def _may_name(self, names: Sequence[str]) -> bool:
        """Whether names that came with an array are its columns': another node may have passed those of its input."""
        return not self._follows_node or set(names) == set(self.names)

    def _arrange(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        wanted = self.names if self._specs else (self._order(columns) or self.names)
        if not self._follows_node and (unknown := next((name for name in columns if name not in wanted), None)):
            raise invalid(f"There is no input {unknown[:80]!r}.{did_you_mean(unknown[:80], wanted)} {self.describe()}")
        optional = {name for name, spec in self._specs.items() if spec.optional}
        if missing := next((name for name in wanted if name not in columns and name not in optional), None):
            raise invalid(f"The input {missing!r} is missing. {self.describe()}")
        return {name: columns[name] for name in wanted if name in columns}

    def describe(self) -> str:
        """Say what the model takes."""
        if self._signature.inputs:
            return f"It takes {self._signature.format_inputs()}."
        if self._trained:
            return f"It takes the columns that it was trained with: {', '.join(map(repr, self._trained))}."
        return "It has no signature, so that what it takes cannot be said here: send what it was trained with."

    def _convert(self, name: str, column: Any) -> NDArray[Any]:
        array = np.asarray(column).reshape(-1)
        spec = self._specs.get(name)
        where = f"The input {name!r}"
        if spec is None:
            return _unpack_objects(array, where)
        if spec.datatype != "BYTES":
            return cast(spec, _unpack_objects(array, where), f"{self._who} input {name!r},")
        return _convert_texts(spec, array, where)


def decode_objects(value: Any, where: str = "The input") -> Any:
    """Return an array of BYTES with its bytes as text; other values as they are."""
    return decode_texts(value, where) if isinstance(value, np.ndarray) and value.dtype.kind == "O" else value


def decode_texts(array: NDArray[Any], where: str) -> NDArray[Any]:
    """Return an array of objects with its bytes as text; ProblemError (400) where they are not UTF-8."""

    def decode(text: Any) -> Any:
        return text.decode() if isinstance(text, bytes) else text

    return _map_elements(decode, array, where, "UTF-8 text. Send text, or have the model's signature declare 'binary'")


def _convert_texts(spec: TensorSpec, array: NDArray[Any], where: str) -> NDArray[Any]:
    if spec.content == "datetime":
        return _parse_datetimes(array, where)
    if spec.content == "binary":
        return array
    texts = decode_texts(array.astype(object), where)
    if spec.content == "json":
        return _map_elements(
            lambda text: json.loads(text) if isinstance(text, str) else text, texts, where, "JSON, as its type needs"
        )
    for place, text in enumerate(texts):
        if not isinstance(text, str):
            raise invalid(f"{where}: element {place} is {text!r:.60}, but it takes text.")
    return texts


def _parse_datetimes(array: NDArray[Any], where: str) -> NDArray[Any]:
    import pandas as pd

    texts = array.astype(object) if array.dtype.kind != "M" else np.datetime_as_string(array).astype(object)
    texts = decode_texts(texts, where)

    def parse(text: Any) -> Any:
        if not isinstance(text, str) or text.strip().lower() in _CLOCKS:
            raise ValueError(text)
        moment = pd.to_datetime(text, format="ISO8601")
        if moment is not pd.NaT and moment.tzinfo is not None:
            raise ValueError(text)
        try:
            return moment.as_unit("ns").to_datetime64()
        except pd.errors.OutOfBoundsDatetime:
            raise invalid(
                f"{where}: {text!r} is beyond the date-times that pandas counts in nanoseconds, as MLflow does: send "
                f"{pd.Timestamp.min:%Y-%m-%d} to {pd.Timestamp.max:%Y-%m-%d}."
            ) from None

    moments = _map_elements(
        parse, texts, where, f"a date and time without a time zone. Send ISO 8601: {_DATETIME_EXAMPLE!r}"
    )
    return moments.astype("datetime64[ns]")


def read_moments(tensor: Tensor) -> NDArray[Any]:
    """Return the texts of an input as the date-times that they are: ``datetime64`` of the unit that the client says,
    else of microseconds, or nanoseconds where they have them; ``date`` objects if they are dates.

    Raises:
        ProblemError: (400) a text is no date-time, has a time zone, or is beyond the unit.
    """
    where = f"The input {tensor.name[:80]!r}"
    texts = decode_texts(tensor.data, where)
    if tensor.content == "date":
        return _map_elements(_parse_date, texts, where, _NAIVE)
    default = "ns" if any(len(str(text).partition(".")[2]) > _MICROSECOND_DIGITS for text in texts.flat) else "us"
    unit: Any = tensor.unit if tensor.unit in _UNITS else default

    def parse(text: Any) -> np.datetime64:
        if not _ISO.fullmatch(text):
            raise ValueError(text)
        moment = np.datetime64(text, unit)
        if text != _GAP and (moment != np.datetime64(text) or not text.startswith(str(moment.astype("M8[Y]")))):
            raise ValueError(text)
        return moment

    return _map_elements(parse, texts, where, _NAIVE).astype(f"M8[{unit}]")


def _parse_date(text: Any) -> date | None:
    if text == _GAP:
        return None
    return datetime.fromisoformat(text) if "T" in text else date.fromisoformat(text)


def _map_elements(convert: Callable[[Any], Any], array: NDArray[Any], where: str, expected: str) -> NDArray[Any]:
    results = np.empty(array.size, dtype=object)
    for place, element in enumerate(array.reshape(-1)):
        try:
            results[place] = convert(element)
        except (ValueError, RecursionError):
            raise invalid(f"{where}: element {place}, {element!r:.60}, is not {expected}.") from None
    return results.reshape(array.shape)


def _unpack_objects(array: NDArray[Any], where: str) -> NDArray[Any]:
    """Return numbers that came among texts as numbers again, and bytes as text."""
    if array.dtype.kind != "O":
        return array
    texts = decode_texts(array, where)
    if any(isinstance(element, str) for element in texts):
        return texts
    numbers = np.array(texts.tolist())
    return numbers if numbers.dtype.kind in "biuf" and numbers.shape == array.shape else texts


def _is_column(array: NDArray[Any]) -> bool:
    return array.ndim == 1 or (array.ndim == 2 and array.shape[1] == 1)


def to_plain_values(column: NDArray[Any]) -> list[Any]:
    """Return Python's own values, since rows as mappings are checked against Python's types."""
    values: list[Any] = (column.astype("datetime64[us]") if column.dtype.kind == "M" else column).tolist()
    return values
