"""Signatures of nodes: read from a class or an ``MLmodel`` file, and checked for each request."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from scanflow.arrays import cast_exactly, fill_masked_parts
from scanflow.errors import InvalidError, did_you_mean
from scanflow_serving.inference_problems import ProblemError, invalid
from scanflow_serving.messages import Tensor
from scanflow_serving.oip_tensors import DATATYPES, find_datatype

_COLUMNS: Final = {
    "boolean": "BOOL",
    "integer": "INT32",
    "long": "INT64",
    "float": "FP32",
    "double": "FP64",
    "string": "BYTES",
    "binary": "BYTES",
    "datetime": "BYTES",
}
"""MLflow's column types. A datetime is sent as text (ISO 8601)."""

_CONTENTS: Final = {"datetime": "datetime", "binary": "binary", "string": ""}
"""What the BYTES of a column hold, if not text; arrays, objects and maps are JSON."""

_EXAMPLES: Final = {"datetime": b"2024-01-01T00:00:00", "json": b"{}"}


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One declared input or output; -1 in its shape: any size."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    optional: bool = False
    content: str = ""
    """What its BYTES hold: ``datetime`` (ISO 8601), ``json``, ``binary``; empty: text, or whatever the caller sends."""

    def __str__(self) -> str:
        return f"{self.datatype} [{', '.join(map(str, self.shape))}]"

    def fits(self, shape: Sequence[int]) -> bool:
        if len(shape) != len(self.shape):
            return False
        return all(wanted in {-1, size} for wanted, size in zip(self.shape, shape, strict=True))

    def make_example(self) -> NDArray[Any]:
        """Return the smallest value that fits: ones rather than zeros, which fewer models take."""
        shape = [1 if size < 0 else size for size in self.shape]
        if self.datatype == "BYTES":
            return np.full(shape, _EXAMPLES.get(self.content, b""), dtype=object)
        return np.ones(shape, DATATYPES[self.datatype])


@dataclass(frozen=True, slots=True)
class NodeSignature:
    """The declared inputs and outputs of a node; empty: undeclared."""

    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    table: bool = False
    """Whether the inputs are the columns of one table."""

    anonymous: bool = False
    """Whether the only input has no name, so that a caller may choose one."""

    numbered: bool = False
    """Whether the columns of a table have no names: the model gets them as 0, 1 and so on."""

    records: bool = False
    """Whether the rows reach the model as mappings."""

    parameters: tuple[str, ...] | None = None
    """The parameters that a request may give the model; None: whichever its class reads."""

    def check(self, tensors: Sequence[Tensor]) -> None:
        """Check a request's tensors; ProblemError (400) names the difference to the declaration."""
        specs = self.inputs
        if not specs or (self.table and self._is_whole_table(tensors)):
            return
        if self.anonymous and len(tensors) == 1:
            _check_tensor(specs[0], tensors[0], tensors[0].name)
            return
        tensors_by_name = {tensor.name: tensor for tensor in tensors}
        names = [spec.name for spec in specs]
        if unknown := next((name for name in tensors_by_name if name not in names), None):
            raise invalid(
                f"There is no input {unknown[:80]!r}.{did_you_mean(unknown[:80], names)} "
                f"Declared: {self.format_inputs()}."
            )
        for spec in specs:
            tensor = tensors_by_name.get(spec.name)
            if tensor is not None:
                _check_tensor(spec, tensor, spec.name, column=self.table)
            elif not spec.optional:
                raise invalid(f"The input {spec.name!r} is missing. Declared: {self.format_inputs()}.")
        if self.table and len({tensor.data.shape[0] for tensor in tensors}) > 1:
            rows = ", ".join(f"{tensor.name!r} has {tensor.data.shape[0]}" for tensor in tensors)
            raise invalid(f"The columns differ in length: {rows}.")

    def has_column(self, name: str) -> bool:
        """Whether the inputs are the columns of one table, and ``name`` is one of several."""
        return self.table and len(self.inputs) > 1 and name in {spec.name for spec in self.inputs}

    def adapt(self, value: Any, who: str, names: Sequence[str] = ()) -> Any:
        """Return the value of a parent node, or of a protocol without datatypes, as this node's input.

        ``names``: those that came with its columns, of which optional ones may be left out. Numbers are cast to the
        declared datatype if only precision is lost.
        """
        specs = self.inputs
        if not specs:
            return value
        value = fill_masked_parts(value)
        if isinstance(value, dict):
            specs_by_name = {spec.name: spec for spec in specs}
            if missing := next((spec.name for spec in specs if spec.name not in value and not spec.optional), None):
                raise _make_unfit(f"{who} takes an input {missing!r}, but got {', '.join(map(repr, value))}.")
            return {
                name: cast(specs_by_name[name], array, f"{who}, input {name!r},", column=self.table)
                if name in specs_by_name
                else array
                for name, array in value.items()
            }
        if isinstance(value, (list, np.ndarray)):
            if self.table:
                return self._as_table(value, who, names)
            if len(specs) == 1:
                return cast(specs[0], value, who)
        names = ", ".join(f"{spec.name!r}" for spec in specs)
        raise _make_unfit(f"{who} takes {names}, but got one value of type {type(value).__name__}.")

    def make_example(self) -> Any:
        """Return the smallest value that fits, or None if nothing is declared."""
        if not self.inputs:
            return None
        if len(self.inputs) == 1 and not self.table:
            return self.inputs[0].make_example()
        return {spec.name: spec.make_example() for spec in self.inputs}

    def check_parameters(self, names: Iterable[str], who: str) -> None:
        """Check the names of a request's parameters; ProblemError (400) names one that would not reach the model."""
        allowed = self.parameters
        if allowed is None or (unknown := next((name for name in names if name not in allowed), None)) is None:
            return
        has = f"It has {', '.join(map(repr, allowed))}." if allowed else "It takes none."
        raise invalid(f"{who} has no parameter {unknown[:80]!r}.{did_you_mean(unknown[:80], allowed)} {has}")

    def format_inputs(self) -> str:
        """Format the inputs: ``'x' FP32 [-1, 4]``."""
        return ", ".join(f"{spec.name!r} {spec}" for spec in self.inputs)

    def _is_whole_table(self, tensors: Sequence[Tensor]) -> bool:
        """Whether it is one array with a column per input, all of one datatype."""
        if len(tensors) != 1 or tensors[0].data.ndim != 2 or tensors[0].name in {spec.name for spec in self.inputs}:
            return False
        data, datatypes = tensors[0].data, {spec.datatype for spec in self.inputs}
        if len(datatypes) == 1 and data.shape[1] == len(self.inputs) and datatypes == {tensors[0].datatype}:
            return True
        raise invalid(
            f"The input {tensors[0].name!r} is {tensors[0].datatype} {list(data.shape)}, which is not a table of the "
            f"columns declared: {self.format_inputs()}."
        )

    def _as_table(self, value: Any, who: str, names: Sequence[str]) -> NDArray[Any]:
        try:
            table = np.asarray(value)
        except ValueError as error:
            raise _make_unfit(f"{who} takes {self.format_inputs()}, but got rows of different lengths.") from error
        is_named = (
            table.ndim == 2 and table.shape[1] == len(names) and {spec.name for spec in self.inputs}.issuperset(names)
        )
        if is_named and any(spec.optional for spec in self.inputs):
            return table
        if table.ndim == 1 and len(self.inputs) == 1:
            return table
        if table.ndim != 2 or table.shape[1] != len(self.inputs):
            raise _make_unfit(
                f"{who} takes tables of {len(self.inputs)} columns, but got shape {list(table.shape)}. "
                f"They are {self.format_inputs()}."
            )
        return table


UNDECLARED: Final = NodeSignature()


def read_declaration(component: object, who: str) -> NodeSignature:
    """Return the ``inputs`` and ``outputs`` of a user's class: lists of ``{"name", "datatype", "shape"}``."""
    return NodeSignature(
        inputs=_parse_specs(getattr(component, "inputs", None), f"{who}: inputs"),
        outputs=_parse_specs(getattr(component, "outputs", None), f"{who}: outputs"),
    )


def read_mlmodel_signature(signature: Mapping[str, Any] | None, who: str) -> NodeSignature:
    if not signature:
        return UNDECLARED
    where = f"{who}: signature"
    entries = _parse_entries(signature.get("inputs"), f"{where}.inputs")
    nameless = len(entries) == 1 and not entries[0].get("name")
    records = nameless and entries[0].get("type") == "object"
    if records:  # rows as mappings: their keys are the columns
        properties = entries[0].get("properties") or {}
        entries = [{"name": name, **described} for name, described in properties.items()]
    inputs, table = _parse_mlflow_specs(entries, "input", f"{where}.inputs")
    written = _parse_entries(signature.get("outputs"), f"{where}.outputs")
    is_known = all(entry.get("type") != "any" for entry in written)
    outputs, _ = _parse_mlflow_specs(written if is_known else (), "output", f"{where}.outputs")
    parameters = _parse_entries(signature.get("params"), f"{where}.params")
    return NodeSignature(
        inputs=inputs,
        outputs=outputs,
        table=table,
        anonymous=nameless and not records,
        numbered=len(entries) > 1 and table and not any("name" in entry for entry in entries),
        records=records,
        parameters=tuple(str(parameter.get("name")) for parameter in parameters) or None,
    )


def _parse_specs(declaration: Any, where: str) -> tuple[TensorSpec, ...]:
    if declaration is None:
        return ()
    if not isinstance(declaration, (list, tuple)):
        raise InvalidError(f'{where} should be a list of {{"name": ..., "datatype": ..., "shape": [...]}}.')
    parsed: list[TensorSpec] = []
    for place, entry in enumerate(declaration):
        if not isinstance(entry, Mapping) or not {"name", "datatype", "shape"} <= entry.keys():
            raise InvalidError(f"{where}[{place}] should have 'name', 'datatype' and 'shape', but is {entry!r:.80}.")
        datatype, shape = str(entry["datatype"]).removeprefix("TYPE_"), entry["shape"]
        if datatype not in DATATYPES:
            raise InvalidError(f"{where}[{place}]: {datatype!r} is not a datatype. Known: {', '.join(DATATYPES)}.")
        if not isinstance(shape, (list, tuple)) or not all(isinstance(size, int) and size >= -1 for size in shape):
            raise InvalidError(f"{where}[{place}]: a shape is a list of sizes, -1 for any, not {shape!r:.80}.")
        parsed.append(TensorSpec(str(entry["name"]), datatype, tuple(shape)))
    if len({spec.name for spec in parsed}) < len(parsed):
        raise InvalidError(f"{where} has two entries of the same name.")
    return tuple(parsed)


def _parse_entries(declaration: Any, where: str) -> list[dict[str, Any]]:
    try:
        entries = json.loads(declaration) if isinstance(declaration, str) else declaration
    except ValueError as error:
        raise InvalidError(f"{where} is not JSON: {error}.") from error
    if entries is None:
        return []
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise InvalidError(f"{where} is not a list of inputs or outputs.")
    return entries


def _parse_mlflow_specs(
    entries: Sequence[Mapping[str, Any]], kind: str, where: str
) -> tuple[tuple[TensorSpec, ...], bool]:
    parsed: list[TensorSpec] = []
    table = False
    for place, entry in enumerate(entries):
        name = str(entry.get("name") or f"{kind}-{place}")
        optional = entry.get("required") is False
        if entry.get("type") == "tensor":
            spec = entry.get("tensor-spec") or {}
            parsed.append(
                TensorSpec(name, parse_dtype(spec.get("dtype"), where), tuple(spec.get("shape", ())), optional)
            )
        else:
            table = True
            column = str(entry.get("type"))
            datatype = _COLUMNS.get(column, "BYTES")
            content = _CONTENTS.get(column, "json") if datatype == "BYTES" else ""
            parsed.append(TensorSpec(name, datatype, (-1,), optional, content))
    return tuple(parsed), table


def parse_dtype(dtype: Any, where: str) -> str:
    try:
        datatype = find_datatype(np.dtype(dtype))
    except TypeError:
        datatype = None
    if datatype is None:
        datatype = "BYTES" if str(dtype) in {"object", "str", "bytes"} else None
    if datatype is None:
        raise InvalidError(f"{where}: {dtype!r} has no datatype of the Open Inference Protocol.")
    return datatype


def _check_tensor(spec: TensorSpec, tensor: Tensor, name: str, *, column: bool = False) -> None:
    shape = tensor.data.shape
    if tensor.datatype == spec.datatype and (spec.fits(shape) or (column and len(shape) == 2 and shape[1] == 1)):
        return
    wrong = "datatype" if tensor.datatype != spec.datatype else "shape"
    raise invalid(
        f"The input {name!r} has the wrong {wrong}: it is declared as {spec}, but is "
        f"{tensor.datatype} [{', '.join(map(str, shape))}]."
    )


def cast(spec: TensorSpec, value: Any, who: str, *, column: bool = False) -> NDArray[Any]:
    """Return a value as an array of the declared type; ProblemError (422) where that would change more than digits."""
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise _make_unfit(f"{who} takes {spec}, but got rows of different lengths.") from error
    got = f"{array.dtype.name} [{', '.join(map(str, array.shape))}]"
    if not spec.fits(array.shape) and not (column and array.ndim == 2 and array.shape[1] == 1):
        raise _make_unfit(f"{who} takes {spec}, but got {got}: the shape is wrong.")
    dtype = DATATYPES[spec.datatype]
    if array.dtype == dtype or (dtype.kind == "O" and array.dtype.kind in "OSUM"):
        return array
    if np.can_cast(array.dtype, dtype, "same_kind") or (array.dtype.kind in "iu" and dtype.kind in "iuf"):
        with np.errstate(over="ignore"):
            converted = array.astype(dtype)
        if dtype.kind == "f" and array.dtype.kind in "iuf":
            too_large = np.isfinite(array) & ~np.isfinite(converted)
            if not too_large.any():
                return converted
            number = array[too_large].flat[0]
            raise _make_unfit(f"{who} takes {spec}, but {number!s:.40} is too large for {dtype.name}.")
        if dtype.kind not in "iu" or array.dtype.kind not in "iu" or np.array_equal(converted, array):
            return converted
    elif array.dtype.kind == "f" and dtype.kind in "iu" and (whole := cast_exactly(array, dtype)) is not None:
        return whole
    raise _make_unfit(f"{who} takes {spec}, but got {got}, which cannot be converted without loss.")


def _make_unfit(detail: str) -> ProblemError:
    return ProblemError(422, detail)
