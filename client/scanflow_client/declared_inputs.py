"""Inputs as a service declares them: columns of the types that its model has, which JSON and text files do not tell."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from scanflow.errors import InvalidError, did_you_mean

if TYPE_CHECKING:
    from scanflow.deployer import Deployer

Declared = Sequence[Mapping[str, Any]]
"""The inputs of a model's metadata in the Open Inference Protocol: name, datatype and shape each."""


def name_columns(inputs: Any) -> Any:
    """Return a DataFrame, or a list of records (a mapping each), as a mapping of names to columns; others as they are.

    Raises:
        InvalidError: a record has other names than the others.
    """
    if hasattr(inputs, "columns") and hasattr(inputs, "to_numpy"):
        return {str(name): inputs[name].to_numpy() for name in inputs.columns}
    if not (isinstance(inputs, list) and inputs and all(isinstance(record, Mapping) for record in inputs)):
        return inputs
    names = list(dict.fromkeys(name for record in inputs for name in record))
    for at, record in enumerate(inputs):
        if lacking := [name for name in names if name not in record]:
            raise InvalidError(f"Record {at} has no {lacking[0]!r}, which others have. Give each the same names.")
    return {str(name): [record[name] for record in inputs] for name in names}


def list_parts(inputs: Any) -> list[Any]:
    """Return the arrays or lists of an input, which is one of them or a mapping of names to them."""
    return list(inputs.values()) if isinstance(inputs, Mapping) else [inputs]


def fetch_declared(deployer: Deployer, service: str, node: str | None) -> Declared:
    """Return the inputs that a service, or one node of its graph, declares."""
    with deployer.connect(service) as client:
        declared: Declared = client.document(f"/v2/models/{node or service}").get("inputs") or ()
        return declared


def fit_inputs(
    inputs: Any, declared: Declared, read_texts: Callable[[Collection[str]], Mapping[str, Any]] = lambda _: {}
) -> Any:
    """Return a caller's input with the declared types, where no value changes by that; the server refuses the others.

    Args:
        inputs: A list of rows, or a mapping of names to columns.
        declared: The service's inputs.
        read_texts: Reads columns as the text that stands in the file.

    Raises:
        InvalidError: columns have other names than the service's inputs.
    """
    from scanflow.transport.tensors import get_dtype

    types = {str(tensor["name"]): str(tensor["datatype"]) for tensor in declared}
    if not isinstance(inputs, Mapping):
        return _convert(inputs, get_dtype(str(declared[0]["datatype"]))) if len(declared) == 1 else inputs
    if len(declared) == 1 and not types.keys() & inputs.keys():
        return _stack(inputs, declared[0])
    if types and (unknown := [name for name in inputs if name not in types]):
        raise InvalidError(
            f"The service has no input {unknown[0]!r}.{did_you_mean(unknown[0], types)} It has {', '.join(types)}."
        )
    texts = [name for name, kind in types.items() if kind == "BYTES" and name in inputs]
    given = {**inputs, **(read_texts(texts) if texts else {})}
    contents = {str(tensor["name"]): (tensor.get("parameters") or {}).get("content_type") for tensor in declared}
    return {
        name: _write_json(value)
        if contents.get(name) == "application/json"
        else _convert(value, get_dtype(types[name]))
        if name in types
        else value
        for name, value in given.items()
    }


def _write_json(values: Any) -> Any:
    """Return lists and mappings, an element each, as JSON texts; texts as they are."""

    def to_list(value: Any) -> Any:
        return value.tolist()  # arrays and numbers of NumPy

    return [value if isinstance(value, (str, bytes)) else json.dumps(value, default=to_list) for value in values]


def _stack(columns: Mapping[str, Any], tensor: Mapping[str, Any]) -> Any:
    """Return columns as the one input of a service, whose columns have no names: in their order."""
    import numpy as np

    from scanflow.transport.tensors import get_dtype

    width = tensor["shape"][-1] if len(tensor["shape"]) == 2 else None
    if width is None or width not in (-1, len(columns)) or not all(map(_is_numeric, columns.values())):
        return dict(columns)
    return {str(tensor["name"]): _convert(np.column_stack(list(columns.values())), get_dtype(str(tensor["datatype"])))}


def _is_numeric(values: Any) -> bool:
    import numpy as np

    return values is not None and np.asarray(values).dtype.kind in "biuf"


def _convert(values: Any, dtype: str | None) -> Any:
    """Return numbers as others of a type, if all of them are the same there; else as they are."""
    import numpy as np

    try:
        array = np.asarray(values)
    except ValueError:  # rows of unlike lengths
        return values
    if dtype is None or array.dtype.kind not in "iuf" or np.dtype(dtype).kind not in "iuf":
        return values
    with np.errstate(all="ignore"):
        converted = array.astype(dtype)
        if converted.dtype.kind == array.dtype.kind == "f":  # only digits are lost
            same = np.isfinite(converted) == np.isfinite(array)
        else:
            same = converted.astype(array.dtype) == array
    return converted if bool(same.all()) else values
