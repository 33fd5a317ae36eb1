"""Predictions for the form of a page: a field for each input that a service declares, or rows as JSON.

They take the way of ``scanflow predict``: a request of the Open Inference Protocol to the service's own address. The
server's own token for services is not sent, as it is not the caller's.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from scanflow.backends.backend_port import ServiceClient
from scanflow.backends.service_records import ServiceRecord
from scanflow.errors import InvalidError
from scanflow_server.server_context import ServerContext

TIMEOUT_S: Final = 20.0
MAX_BYTES: Final = 2**20
"""The longest answer that is read."""

MAX_SHOWN: Final = 20_000
"""Letters of an answer that are shown."""

MAX_FIELDS: Final = 60
_JSON: Final = {"content-type": "application/json", "accept-encoding": "identity"}
_EXAMPLES: Final = {"BOOL": True, "BYTES": "text"}


class DeclaredInput(NamedTuple):
    """An input of a service, as it declares it."""

    name: str
    datatype: str
    """``FP64``, ``INT64``, ``BOOL``, ``BYTES`` …"""

    shape: tuple[int, ...]
    content: str = ""
    """What a text is: ``datetime`` or ``application/json``."""

    @property
    def is_column(self) -> bool:
        """Whether a row of it is one value."""
        return self.content != "application/json" and all(size in {-1, 1} for size in self.shape)

    @property
    def kind(self) -> str:
        """What a field takes: ``number``, ``truth`` or ``text``."""
        if self.datatype == "BOOL":
            return "truth"
        return "number" if self.datatype.lstrip("U").startswith(("INT", "FP", "BF")) else "text"


@contextmanager
def connect(context: ServerContext, record: ServiceRecord, token: str | None = None) -> Iterator[ServiceClient]:
    """Give a client whose answers are bounded in size and time; ``token``: the caller's, for a service that asks."""
    from scanflow.transport import HttpServiceClient

    own = context.deployer.backend.online().client(record.name)
    options: dict[str, Any] = {"name": record.name, "timeout_s": TIMEOUT_S, "max_bytes": MAX_BYTES}
    with own or HttpServiceClient(record.url, token=token or None, **options) as client:
        yield client


def load_inputs(client: ServiceClient, record: ServiceRecord) -> list[DeclaredInput]:
    """Return what the graph of a service declares, else a registered model in it; none: nothing does."""
    nodes = [node for revision in record.revisions for node in revision.models]
    for name in dict.fromkeys((record.name, *nodes)):
        document = client.document(f"/v2/models/{quote(name, safe='')}")
        if inputs := read_inputs(document.get("inputs")):
            return inputs
    return []


def read_inputs(inputs: Any) -> list[DeclaredInput]:
    """Return inputs as a service declares them; what is none is left out. Pure."""
    entries = [entry for entry in inputs if isinstance(entry, Mapping)] if isinstance(inputs, list) else []
    return [
        DeclaredInput(
            str(entry["name"]),
            str(entry.get("datatype", "")),
            tuple(int(size) for size in entry.get("shape") or () if isinstance(size, int)),
            str((entry.get("parameters") or {}).get("content_type", "")),
        )
        for entry in entries
        if "name" in entry
    ]


def has_fields(inputs: Sequence[DeclaredInput]) -> bool:
    """Return whether a form has a field for each input, rather than one for rows as JSON."""
    return 0 < len(inputs) <= MAX_FIELDS and all(item.is_column for item in inputs)


def write_example(inputs: Sequence[DeclaredInput]) -> str:
    """Return rows of the inputs, to begin with; empty: one would be too long."""
    if has_fields(inputs):
        rows: Any = [{item.name: _EXAMPLES.get(item.datatype, 1) for item in inputs}]
    else:
        columns = {item.name: _fill([max(size, 1) for size in item.shape], item.datatype) for item in inputs}
        rows = next(iter(columns.values())) if len(columns) == 1 else columns or [[0.5, 0.5, 0.5]]
    text = json.dumps(rows)
    return text if len(text) <= 1_000 else ""


def _fill(shape: Sequence[int], datatype: str) -> Any:
    if math.prod(shape) > 200:
        return []
    return [_fill(shape[1:], datatype)] * shape[0] if shape else _EXAMPLES.get(datatype, 1)


def answer_form(client: ServiceClient, record: ServiceRecord, form: Mapping[str, str]) -> str:
    """Return a service's answer to a form: to its ``rows``, else to its fields. Errors: see :func:`predict`."""
    inputs, text = load_inputs(client, record), form.get("rows", "").strip()
    return predict(client, record.name, parse_rows(inputs, text) if text else parse_fields(inputs, form))


def predict(client: ServiceClient, name: str, tensors: Sequence[Mapping[str, Any]]) -> str:
    """Return a service's answer as text to show.

    Raises:
        InvalidError: the service refuses the input.
        ServiceFailedError: a component failed on it.
        UnavailableError: it does not answer in time, or is full.
    """
    body = json.dumps({"inputs": list(tensors)}).encode()
    return format_answer(client.post(f"/v2/models/{quote(name, safe='')}/infer", body, _JSON).content)


def format_answer(content: bytes) -> str:
    """Return the outputs of an answer, a paragraph each; another document as it is. Pure."""
    try:
        document = json.loads(content)
        outputs = [
            f"{output['name']}  {output['datatype']} {output['shape']}\n{_write_value(output['data'])}"
            for output in document["outputs"]
        ]
        text = "\n\n".join(outputs)
    except (ValueError, TypeError, KeyError, RecursionError):
        text = content.decode("utf-8", "replace")
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}… and {len(text) - MAX_SHOWN:,} more characters"


def _write_value(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def parse_fields(inputs: Sequence[DeclaredInput], form: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the tensors of a form: the field of the first input is ``f0``. One left empty is left out. Pure."""
    texts = [(item, form.get(f"f{place}", "").strip()) for place, item in enumerate(inputs)]
    return [
        _build_tensor(item, [1] * max(len(item.shape), 1), [_parse_value(item, text)]) for item, text in texts if text
    ]


def _build_tensor(item: DeclaredInput, shape: Sequence[int], data: Sequence[Any]) -> dict[str, Any]:
    if item.content == "application/json":
        data = [value if isinstance(value, str) else json.dumps(value) for value in data]
    return {"name": item.name, "shape": list(shape), "datatype": item.datatype, "data": list(data)}


def _parse_value(item: DeclaredInput, text: str) -> Any:
    if item.kind == "truth":
        return text == "true"
    if item.kind == "text":
        return text
    try:
        value = float(text) if "F" in item.datatype else int(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        what = "a number" if "F" in item.datatype else "a whole number"
        raise InvalidError(f"{item.name!r} takes {what}, and {text[:40]!r} is none.")
    return value


def parse_rows(inputs: Sequence[DeclaredInput], text: str) -> list[dict[str, Any]]:
    """Return the tensors of rows as JSON: lists, records, or columns by name; or of a whole request. Pure.

    Raises:
        InvalidError: it is not JSON, or its rows are of unlike lengths.
    """
    try:
        rows = json.loads(text)
        if isinstance(rows, dict) and isinstance(rows.get("inputs"), list):
            return [dict(entry) for entry in rows["inputs"]]
        columns = _name_columns(inputs, rows)
        declared = {item.name: item for item in inputs}
        return [_to_tensor(name, declared.get(name), values) for name, values in columns.items()]
    except (ValueError, TypeError, RecursionError) as error:
        if isinstance(error, InvalidError):
            raise
        raise InvalidError(f"The input is not JSON: {error}. Write rows, such as [[1, 2, 3]].") from error


def _name_columns(inputs: Sequence[DeclaredInput], rows: Any) -> Mapping[str, Any]:
    if isinstance(rows, Mapping):
        return rows
    if isinstance(rows, list) and rows and all(isinstance(row, Mapping) for row in rows):
        names = dict.fromkeys(name for row in rows for name in row)
        if lacking := [name for name in names if any(name not in row for row in rows)]:
            raise InvalidError(f"A row has no {lacking[0]!r}, which others have. Give each the same names.")
        return {name: [row[name] for row in rows] for name in names}
    if len(inputs) > 1:
        raise InvalidError(f"The service takes {', '.join(item.name for item in inputs)}. Write a record for each row.")
    return {inputs[0].name if inputs else "input": rows}


def _to_tensor(name: str, item: DeclaredInput | None, values: Any) -> dict[str, Any]:
    if item is not None and item.content == "application/json":
        values = values if isinstance(values, list) else [values]
        return _build_tensor(item, [len(values)], values)
    shape, flat = _measure(values), list(_flatten(values))
    if item is None:
        item = DeclaredInput(name, "BYTES" if any(isinstance(value, str) for value in flat) else "FP64", ())
    if len(item.shape) == len(shape) + 1 and item.shape[-1] in {-1, 1}:
        shape = [*shape, 1]
    return _build_tensor(item, shape, flat)


def _measure(values: Any) -> list[int]:
    """Return the shape of nested lists; InvalidError: they are of unlike lengths."""
    if not isinstance(values, list):
        return []
    shapes = [_measure(value) for value in values]
    if any(shape != shapes[0] for shape in shapes):
        raise InvalidError("The rows are of unlike lengths. Give each the same number of values.")
    return [len(values), *(shapes[0] if shapes else ())]


def _flatten(values: Any) -> Iterator[Any]:
    if not isinstance(values, list):
        yield values
        return
    for value in values:
        yield from _flatten(value)
