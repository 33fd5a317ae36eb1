"""What a node says that it takes and gives: read once from a class or an ``MLmodel`` file, checked for each request."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from scanflow.errors import InvalidError, did_you_mean
from scanflow_serving.messages import Tensor
from scanflow_serving.problems import ProblemError, invalid
from scanflow_serving.tensors import DATATYPES, datatype_of

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
"""MLflow's types of columns. A datetime travels as text (ISO 8601)."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One declared input or output; -1 in its shape: any size."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    optional: bool = False

    def __str__(self) -> str:
        return f"{self.datatype} [{', '.join(map(str, self.shape))}]"

    def fits(self, shape: Sequence[int]) -> bool:
        if len(shape) != len(self.shape):
            return False
        return all(wanted in {-1, size} for wanted, size in zip(self.shape, shape, strict=True))

    def zeros(self) -> NDArray[Any]:
        shape = [1 if size < 0 else size for size in self.shape]
        if self.datatype == "BYTES":
            return np.full(shape, b"", dtype=object)
        return np.zeros(shape, DATATYPES[self.datatype])


@dataclass(frozen=True, slots=True)
class NodeSignature:
    """The inputs and outputs of a node; none of either: it says nothing about them."""

    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    table: bool = False
    """The inputs are the columns of one table, each a value a row."""

    anonymous: bool = False
    """The one input has no name of its own: a caller may call it as it likes."""

    def check(self, tensors: Sequence[Tensor]) -> None:
        """Check what a caller sends: 400, naming what came and what is declared."""
        specs = self.inputs
        if not specs or (self.table and self._is_whole_table(tensors)):
            return
        if self.anonymous and len(tensors) == 1:
            _compare(specs[0], tensors[0], tensors[0].name)
            return
        given = {tensor.name: tensor for tensor in tensors}
        known = [spec.name for spec in specs]
        if unknown := next((name for name in given if name not in known), None):
            raise invalid(
                f"There is no input {unknown[:80]!r}.{did_you_mean(unknown[:80], known)} Declared: {self.described()}."
            )
        for spec in specs:
            tensor = given.get(spec.name)
            if tensor is not None:
                _compare(spec, tensor, spec.name, column=self.table)
            elif not spec.optional:
                raise invalid(f"The input {spec.name!r} is missing. Declared: {self.described()}.")
        if self.table and len({tensor.data.shape[0] for tensor in tensors}) > 1:
            rows = ", ".join(f"{tensor.name!r} has {tensor.data.shape[0]}" for tensor in tensors)
            raise invalid(f"The columns are not equally long: {rows}.")

    def adapt(self, value: Any, who: str) -> Any:
        """Return what a node before, or a caller whose protocol has no datatypes, gives to this one.

        Numbers are cast to the declared datatype where nothing is lost but precision.
        """
        specs = self.inputs
        if not specs:
            return value
        if isinstance(value, dict):
            known = {spec.name: spec for spec in specs}
            if missing := next((spec.name for spec in specs if spec.name not in value and not spec.optional), None):
                raise _unfit(f"{who} takes an input {missing!r}, and got {', '.join(map(repr, value))}.")
            return {
                name: _cast(known[name], array, f"{who}, input {name!r},", column=self.table)
                if name in known
                else array
                for name, array in value.items()
            }
        if isinstance(value, (list, np.ndarray)):
            if self.table:
                return self._as_table(value, who)
            if len(specs) == 1:
                return _cast(specs[0], value, who)
        names = ", ".join(f"{spec.name!r}" for spec in specs)
        raise _unfit(f"{who} takes {names}, and got one value of type {type(value).__name__}.")

    def zeros(self) -> Any:
        """Return the smallest value that fits, or None where nothing is declared."""
        if not self.inputs:
            return None
        if len(self.inputs) == 1 and not self.table:
            return self.inputs[0].zeros()
        return {spec.name: spec.zeros() for spec in self.inputs}

    def described(self) -> str:
        """Return the inputs in words: ``'x' FP32 [-1, 4]``."""
        return ", ".join(f"{spec.name!r} {spec}" for spec in self.inputs)

    def _is_whole_table(self, tensors: Sequence[Tensor]) -> bool:
        """Whether it is one array with a column for each, which all hold the same."""
        if len(tensors) != 1 or tensors[0].data.ndim != 2 or tensors[0].name in {spec.name for spec in self.inputs}:
            return False
        data, datatypes = tensors[0].data, {spec.datatype for spec in self.inputs}
        if len(datatypes) == 1 and data.shape[1] == len(self.inputs) and datatypes == {tensors[0].datatype}:
            return True
        raise invalid(
            f"The input {tensors[0].name!r} is {tensors[0].datatype} {list(data.shape)}, which is not a table of the "
            f"columns declared: {self.described()}."
        )

    def _as_table(self, value: Any, who: str) -> NDArray[Any]:
        table = np.asarray(value)
        if table.ndim != 2 or table.shape[1] != len(self.inputs):
            raise _unfit(f"{who} takes tables of {len(self.inputs)} columns, and got shape {list(table.shape)}.")
        return table


NOTHING: Final = NodeSignature()


def declared_by(component: object, who: str) -> NodeSignature:
    """Return what a user's class says in ``inputs`` and ``outputs``: lists of ``{"name", "datatype", "shape"}``."""
    return NodeSignature(
        inputs=_specs(getattr(component, "inputs", None), f"{who}: inputs"),
        outputs=_specs(getattr(component, "outputs", None), f"{who}: outputs"),
    )


def declared_in_mlmodel(signature: Mapping[str, Any] | None, who: str) -> NodeSignature:
    if not signature:
        return NOTHING
    inputs, table = _from_mlflow(signature.get("inputs"), "input", f"{who}: signature.inputs")
    outputs, _ = _from_mlflow(signature.get("outputs"), "output", f"{who}: signature.outputs")
    anonymous = len(inputs) == 1 and not table and not _entries(signature.get("inputs"), who)[0].get("name")
    return NodeSignature(inputs=inputs, outputs=outputs, table=table, anonymous=anonymous)


def _specs(said: Any, where: str) -> tuple[TensorSpec, ...]:
    if said is None:
        return ()
    if not isinstance(said, (list, tuple)):
        raise InvalidError(f'{where} should be a list of {{"name": ..., "datatype": ..., "shape": [...]}}.')
    found: list[TensorSpec] = []
    for place, one in enumerate(said):
        if not isinstance(one, Mapping) or not {"name", "datatype", "shape"} <= one.keys():
            raise InvalidError(f"{where}[{place}] should have 'name', 'datatype' and 'shape', and is {one!r:.80}.")
        datatype, shape = str(one["datatype"]).removeprefix("TYPE_"), one["shape"]
        if datatype not in DATATYPES:
            raise InvalidError(f"{where}[{place}]: {datatype!r} is no datatype. Known: {', '.join(DATATYPES)}.")
        if not isinstance(shape, (list, tuple)) or not all(isinstance(size, int) and size >= -1 for size in shape):
            raise InvalidError(f"{where}[{place}]: a shape is a list of sizes, -1 for any, and not {shape!r:.80}.")
        found.append(TensorSpec(str(one["name"]), datatype, tuple(shape)))
    if len({spec.name for spec in found}) < len(found):
        raise InvalidError(f"{where} has two of the same name.")
    return tuple(found)


def _entries(said: Any, where: str) -> list[dict[str, Any]]:
    try:
        entries = json.loads(said) if isinstance(said, str) else said
    except ValueError as error:
        raise InvalidError(f"{where} is no JSON: {error}.") from error
    if entries is None:
        return []
    if not isinstance(entries, list) or not all(isinstance(one, dict) for one in entries):
        raise InvalidError(f"{where} is no list of inputs or outputs.")
    return entries


def _from_mlflow(said: Any, kind: str, where: str) -> tuple[tuple[TensorSpec, ...], bool]:
    found: list[TensorSpec] = []
    table = False
    for place, one in enumerate(_entries(said, where)):
        name = str(one.get("name") or f"{kind}-{place}")
        optional = one.get("required") is False
        if one.get("type") == "tensor":
            spec = one.get("tensor-spec") or {}
            found.append(
                TensorSpec(name, datatype_in(spec.get("dtype"), where), tuple(spec.get("shape", ())), optional)
            )
        else:
            table = True
            # Arrays, objects and maps as values of a column travel as JSON text.
            found.append(TensorSpec(name, _COLUMNS.get(str(one.get("type")), "BYTES"), (-1,), optional))
    return tuple(found), table


def datatype_in(dtype: Any, where: str) -> str:
    try:
        found = datatype_of(np.dtype(dtype))
    except TypeError:
        found = None
    if found is None:
        found = "BYTES" if str(dtype) in {"object", "str", "bytes"} else None
    if found is None:
        raise InvalidError(f"{where}: {dtype!r} has no datatype of the Open Inference Protocol.")
    return found


def _compare(spec: TensorSpec, tensor: Tensor, name: str, *, column: bool = False) -> None:
    shape = tensor.data.shape
    if tensor.datatype == spec.datatype and (spec.fits(shape) or (column and len(shape) == 2 and shape[1] == 1)):
        return
    wrong = "datatype" if tensor.datatype != spec.datatype else "shape"
    raise invalid(
        f"The input {name!r} has a wrong {wrong}: it is declared as {spec}, and got "
        f"{tensor.datatype} [{', '.join(map(str, shape))}]."
    )


def _cast(spec: TensorSpec, value: Any, who: str, *, column: bool = False) -> NDArray[Any]:
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise _unfit(f"{who} takes {spec}, and got rows that are not equally long.") from error
    got = f"{array.dtype.name} [{', '.join(map(str, array.shape))}]"
    if not spec.fits(array.shape) and not (column and array.ndim == 2 and array.shape[1] == 1):
        raise _unfit(f"{who} takes {spec}, and got {got}: the shape is wrong.")
    wanted = DATATYPES[spec.datatype]
    if array.dtype == wanted or (wanted.kind == "O" and array.dtype.kind in "OSU"):
        return array
    if np.can_cast(array.dtype, wanted, "same_kind") or (array.dtype.kind in "iu" and wanted.kind in "iuf"):
        cast = array.astype(wanted)
        if wanted.kind not in "iu" or array.dtype.kind not in "iu" or np.array_equal(cast, array):
            return cast
    elif array.dtype.kind == "f" and wanted.kind in "iu" and np.isfinite(array).all():
        bounds = np.iinfo(wanted)
        if not array.size or (array.min() >= bounds.min and array.max() <= bounds.max):
            cast = array.astype(wanted)
            if np.array_equal(cast, array):
                return cast
    raise _unfit(f"{who} takes {spec}, and got {got}, which cannot be had without loss.")


def _unfit(detail: str) -> ProblemError:
    return ProblemError(422, detail)
