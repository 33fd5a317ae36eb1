"""The input example that was saved with a model, as a request's value."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from scanflow_serving.oip_tensors import DATATYPES
from scanflow_serving.signature import NodeSignature

_MAX_BYTES: Final = 16 * 1024 * 1024


def read_example(folder: Path, mlmodel: Mapping[str, Any], declared: NodeSignature) -> Any:
    """Return the example as an array or a mapping of names to arrays; None: there is none that can be read."""
    about = mlmodel.get("saved_input_example_info")
    if not isinstance(about, Mapping):
        return None
    file = folder / str(about.get("artifact_path", "input_example.json"))
    try:
        if file.stat().st_size > _MAX_BYTES:
            return None
        document = json.loads(file.read_text(encoding="utf-8"))
        if str(about.get("params", "")).lower() == "true":
            document = document["inputs"]
        return _to_value(document, declared)
    except (OSError, ValueError, TypeError, LookupError):
        return None


def _to_value(document: Any, declared: NodeSignature) -> Any:
    if isinstance(document, dict) and {"columns", "data"} <= document.keys():
        names = [str(name) for name in document["columns"]]
        rows = document["data"]
        columns = {name: [row[place] for row in rows] for place, name in enumerate(names)}
        return {name: _to_column(name, values, declared) for name, values in columns.items()}
    if isinstance(document, list) and document and all(isinstance(row, dict) for row in document):
        return {str(name): _to_column(name, [row[name] for row in document], declared) for name in document[0]}
    if isinstance(document, dict) and set(document) == {"inputs"}:
        document = document["inputs"]
    if isinstance(document, dict):
        return {str(name): _to_column(name, values, declared) for name, values in document.items()}
    only = declared.inputs[0].name if len(declared.inputs) == 1 else ""
    return _to_column(only, document, declared)


def _to_column(name: str, values: Any, declared: NodeSignature) -> Any:
    spec = next((spec for spec in declared.inputs if spec.name == name), None)
    if spec is None:
        return np.asarray(values)
    if spec.content == "json":
        values = [json.dumps(value) for value in values]
    return np.asarray(values, DATATYPES[spec.datatype])
