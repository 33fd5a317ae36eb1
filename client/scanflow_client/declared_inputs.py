"""Inputs as a service declares them: columns of the types that its model has, which JSON and text files do not tell."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any

from scanflow.arrays import cast_exactly, is_missing, join_numbers, make_array
from scanflow.errors import InvalidError, did_you_mean

if TYPE_CHECKING:
    from scanflow.deployer import Deployer

Declared = Sequence[Mapping[str, Any]]
"""The inputs of a model's metadata in the Open Inference Protocol: name, datatype and shape each."""


def name_columns(inputs: Any) -> Any:
    """Return a DataFrame, a Series that has a name or is a row, or a list of records (a mapping each), as a mapping of
    names to columns; others as they are.

    Raises:
        InvalidError: a record has other names than the others, or two columns have the same.
    """
    if hasattr(inputs, "columns") and hasattr(inputs, "to_numpy"):
        _check_names(inputs.columns)
        return {str(name): inputs[name].to_numpy() for name in inputs.columns}
    if hasattr(inputs, "to_frame") and hasattr(inputs, "to_numpy"):
        if isinstance(inputs.name, Integral) and len(inputs) and all(isinstance(label, str) for label in inputs.index):
            return {label: [value] for label, value in inputs.items()}  # a row of a table, as df.iloc[0] gives it
        return inputs.to_numpy() if inputs.name is None else {str(inputs.name): inputs.to_numpy()}
    if not (isinstance(inputs, list) and inputs and all(isinstance(record, Mapping) for record in inputs)):
        return inputs
    names = list(dict.fromkeys(name for record in inputs for name in record))
    for at, record in enumerate(inputs):
        if lacking := [name for name in names if name not in record]:
            raise InvalidError(f"Record {at} has no {lacking[0]!r}, which others have. Give each the same names.")
    _check_names(names)
    return {str(name): [record[name] for record in inputs] for name in names}


def _check_names(names: Iterable[Any]) -> None:
    """Refuse names that are the same as text, as 1 and "1" are: one of the columns would be lost."""
    first: dict[str, Any] = {}
    for name in names:
        if str(name) in first:
            raise InvalidError(f"The columns {first[str(name)]!r} and {name!r} have the same name. Rename one of them.")
        first[str(name)] = name


def list_parts(inputs: Any) -> list[Any]:
    """Return the arrays or lists of an input, which is one of them or a mapping of names to them."""
    return list(inputs.values()) if isinstance(inputs, Mapping) else [inputs]


def fetch_declared(deployer: Deployer, service: str, node: str | None) -> Declared:
    """Return the inputs that a service, or one node of its graph, declares."""
    declared: Declared = fetch_metadata(deployer, service, node).get("inputs") or ()
    return declared


def fetch_metadata(deployer: Deployer, service: str, node: str | None) -> Mapping[str, Any]:
    """Return a model's metadata in the Open Inference Protocol: of a service, or of one node of its graph."""
    with deployer.connect(service) as client:
        metadata: Mapping[str, Any] = client.document(f"/v2/models/{node or service}")
        return metadata


def fit_inputs(
    inputs: Any, declared: Declared, read_texts: Callable[[Collection[str]], Mapping[str, Any]] = lambda _: {}
) -> Any:
    """Return a caller's input with the declared types, where no value changes by that; the server refuses the others.

    Args:
        inputs: A list of rows or records, a DataFrame, or a mapping of names to columns, or to the values of one row.
        declared: The service's inputs.
        read_texts: Reads columns as the text that stands in the file.

    Raises:
        InvalidError: columns have other names than the service's inputs.
    """
    if (elements := _write_elements(inputs, declared)) is not None:
        return elements
    inputs = _wrap_row(name_columns(inputs), declared)
    types = {str(tensor["name"]): str(tensor["datatype"]) for tensor in declared}
    inputs = _name_by_place(inputs, types)
    if not isinstance(inputs, Mapping):
        return _name_input(inputs, declared[0]) if len(declared) == 1 else inputs
    if len(declared) == 1 and not types.keys() & inputs.keys():
        return _stack(inputs, declared[0])
    if types and (unknown := [name for name in inputs if name not in types]):
        advice = did_you_mean(unknown[0], types)
        names = "" if advice.startswith(" Known") else f" It has {', '.join(types)}."
        raise InvalidError(f"The service has no input {unknown[0]!r}.{advice}{names}")
    texts = [name for name, kind in types.items() if kind == "BYTES" and name in inputs]
    given = {**inputs, **(read_texts(texts) if texts else {})}
    contents = {str(tensor["name"]): _find_content(tensor) for tensor in declared}
    return {
        name: _write_json(value)
        if contents.get(name) == "application/json"
        else _write_gaps(value)
        if contents.get(name) == "datetime"
        else _convert(name, value, types[name])
        if name in types
        else value
        for name, value in given.items()
    }


def _wrap_row(inputs: Any, declared: Declared) -> Any:
    """Return a mapping of names to single values as columns of one row, if columns are declared; others as they are."""
    takes_columns = bool(declared) and all(tensor.get("shape") for tensor in declared)
    if not (takes_columns and isinstance(inputs, Mapping) and inputs and all(map(_is_single, inputs.values()))):
        return inputs
    return {name: [value] for name, value in inputs.items()}


def _is_single(value: Any) -> bool:
    return isinstance(value, str | bytes) or not hasattr(value, "__iter__")


def _name_by_place(inputs: Any, names: Iterable[str]) -> Any:
    """Return the numbered columns of a table, 0 and so on in their order, by the names of inputs that have none; others
    as they are."""
    names = list(names)
    if not isinstance(inputs, Mapping) or list(inputs) != [str(place) for place in range(len(names))]:
        return inputs
    is_unnamed = names == [f"input-{place}" for place in range(len(names))]
    return dict(zip(names, inputs.values(), strict=True)) if is_unnamed else inputs


def _name_input(rows: Any, tensor: Mapping[str, Any]) -> Any:
    """Return rows by the name of the only input, if they have its dimensions."""
    name = str(tensor["name"])
    converted = _convert(name, rows, str(tensor["datatype"]))
    try:
        dimensions = make_array(converted).ndim
    except ValueError:  # rows of unlike lengths
        return converted
    return {name: converted} if dimensions == len(tensor.get("shape", ())) else converted


def _find_content(tensor: Mapping[str, Any]) -> str | None:
    return (tensor.get("parameters") or {}).get("content_type")


def _write_elements(inputs: Any, declared: Declared) -> dict[str, list[Any]] | None:
    """Return a list whose elements are what the one input takes, as JSON texts; None: they are rows or records."""
    if not isinstance(inputs, list) or len(declared) != 1 or _find_content(declared[0]) != "application/json":
        return None
    name = str(declared[0]["name"])
    is_column = all(isinstance(element, Mapping) and name in element for element in inputs)
    return None if is_column else {name: _write_json(inputs)}


def _write_json(values: Any) -> Any:
    """Return lists and mappings, an element each, as JSON texts; texts as they are."""

    def to_list(value: Any) -> Any:
        return value.tolist()  # arrays and numbers of NumPy

    return [value if isinstance(value, (str, bytes)) else json.dumps(value, default=to_list) for value in values]


def _write_gaps(values: Any) -> Any:
    """Return texts of date-times with "NaT" for those that are missing; others as they are."""
    import numpy as np

    array = make_array(values)
    if array.dtype.kind not in "fO" or not all(isinstance(value, str) or is_missing(value) for value in array.flat):
        return values
    return np.array(["NaT" if is_missing(value) else value for value in array.flat], dtype=object).reshape(array.shape)


def _stack(columns: Mapping[str, Any], tensor: Mapping[str, Any]) -> Any:
    """Return columns as the one input of a service, whose columns have no names: in their order."""
    import numpy as np

    width = tensor["shape"][-1] if len(tensor["shape"]) == 2 else None
    name, datatype = str(tensor["name"]), str(tensor["datatype"])
    fitted = {column: _convert(column, values, datatype) for column, values in columns.items()}
    if width is None or width not in (-1, len(columns)) or not all(map(_is_numeric, fitted.values())):
        return dict(columns)
    return {name: _convert(name, np.column_stack(list(fitted.values())), datatype)}


def _is_numeric(values: Any) -> bool:
    import numpy as np

    return values is not None and np.asarray(values).dtype.kind in "biuf"


def _convert(name: str, values: Any, datatype: str) -> Any:
    """Return numbers as others of a type, if all of them are the same there; else as they are.

    Raises:
        InvalidError: a value is missing, and the type has no missing values.
    """
    import numpy as np

    from scanflow.transport.tensors import find_dtype

    try:
        array = make_array(values)
    except ValueError:  # rows of unlike lengths
        return values
    dtype = np.dtype(find_dtype(datatype) or object)
    if dtype.kind == "O" and datatype != "BYTES":  # BF16, which NumPy has not
        return values
    if not array.size:
        return array.astype(dtype)
    if array.dtype.kind == "O" and dtype.kind != "O":
        array = np.full(array.shape, np.nan) if all(map(is_missing, array.flat)) else join_numbers(array)
    if (
        dtype.kind in "iub"
        and array.dtype.kind in "fO"
        and (gaps := np.flatnonzero([*map(is_missing, array.flat)])).size
    ):
        raise InvalidError(
            f"The input {name!r} is of {datatype}, which has no missing values, but element {gaps[0]} is missing. "
            "Leave such rows out, or an optional column; a signature with 'double' there takes missing numbers."
        )
    if dtype.kind not in "iuf" or array.dtype.kind not in "iuf":
        return values
    converted = cast_exactly(array, dtype)
    return array if converted is None else converted
