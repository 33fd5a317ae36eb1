"""Read prediction requests from a command line, send them, and format the responses."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Collection, Mapping, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple
from urllib.parse import quote

from scanflow.errors import InvalidError, NotFoundError, UsageError
from scanflow.files.content import read_content
from scanflow.installation import explain_install
from scanflow.tables.columns import FORMATS, PACKED, Columns, ReadOptions, is_table
from scanflow_client.declared_inputs import Declared, fetch_declared, fetch_metadata, fit_inputs, name_columns
from scanflow_client.formatting.text import to_document

if TYPE_CHECKING:
    from scanflow.deployer import Deployer
    from scanflow.transport import PredictionResponse, Reply

_SELDON = frozenset({"data", "binData", "strData", "jsonData"})
_NUMPY = b"\x93NUMPY"
_ZIP = b"PK\x03\x04"
_BYTES = "application/octet-stream"
_TYPES_OF_BYTES = frozenset({"BYTES", "UINT8"})
"""What outputs are declared as that may be a file's bytes."""
_JSON = {"content-type": "application/json"}
_SPREADSHEETS = frozenset({".xlsx", ".xls", ".xlsm", ".xlsb", ".ods", ".orc", ".avro", ".dta", ".sav", ".sas7bdat"})
_MAX_SHOWN = 1000  # numbers of one output that are written out for a person


@dataclass(frozen=True, slots=True)
class InputTable:
    """A file of a table, and how it is to be read."""

    path: Path
    options: ReadOptions
    columns: Columns


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictRequest:
    """A prediction request: exactly one of these is set."""

    inputs: Any = None
    """Rows: an array, a list, or a mapping of input names to these."""

    message: Mapping[str, Any] | None = None
    """A whole request of the Open Inference Protocol, or a message of Seldon's."""

    raw: bytes | None = None

    table: InputTable | None = None
    """The file that the columns of ``inputs`` were read from."""

    @property
    def rows(self) -> int:
        """The number of samples: rows of the first input, else 1."""
        first = next(iter(self.inputs.values()), None) if isinstance(self.inputs, Mapping) else self.inputs
        if not isinstance(first, Sized) or isinstance(first, str) or getattr(first, "ndim", 1) == 0:
            return 1
        return max(1, len(first))


def read_request(
    *, file: str | None, data: str | None, npy: Path | None, stdin: BinaryIO, options: ReadOptions | None = None
) -> PredictRequest:
    """Return the request from a table, JSON, a NumPy array, or raw bytes. ``options``: how a table is written."""
    sources = [source for source in (file, data, npy) if source is not None]
    if len(sources) > 1:
        raise UsageError("Several inputs are given. Keep one: a file, --data or --npy.")
    if data is not None:
        return _parse_json(data, "--data")
    if npy is not None:
        return PredictRequest(inputs=_load_array(_read_bytes(npy), str(npy)))
    if file is None and stdin.isatty():
        raise UsageError("No input is given. Give rows: --data '[[1, 2, 3]]', a file, or - for standard input.")
    if file is None or file == "-":
        return _parse_bytes(stdin.read(), "standard input")
    path = Path(file)
    if is_table(path):
        columns = _read_columns(path, options or ReadOptions())
        inputs = {name: _round_large(values) for name, values in columns.values.items()}
        return PredictRequest(inputs=inputs, table=InputTable(path, options or ReadOptions(), columns))
    content = _read_bytes(path)
    if path.suffix.lower() in {*_SPREADSHEETS, *PACKED}:
        raise InvalidError(
            f"{path.name!r} is no table that can be read here. Give a file of {FORMATS}, or an array: .npy, .npz. To "
            f"send its bytes as they are, give them as standard input: - < {path.name}"
        )
    return (
        _parse_json(content.decode(errors="replace"), file) if path.suffix == ".json" else _parse_bytes(content, file)
    )


class HttpRequest(NamedTuple):
    """An HTTP request for a prediction."""

    path: str
    body: bytes
    headers: Mapping[str, str]


def to_http(
    deployer: Deployer, name: str, request: PredictRequest, *, node: str | None, dtype: str | None, seldon: bool
) -> HttpRequest:
    """Return the HTTP request for a prediction; rows become binary tensors of the type that the service declares."""
    if _is_seldon(request, seldon):
        return HttpRequest("/api/v1.0/predictions", json.dumps(_build_seldon_message(request)).encode(), _JSON)
    path = f"/v2/models/{quote(node or name, safe='')}/infer"
    if request.message is not None:
        return HttpRequest(path, json.dumps(request.message).encode(), _JSON)
    if request.raw is not None:
        return HttpRequest(path, request.raw, _build_raw_headers(request.raw, deployer, name, node))
    from scanflow.transport.tensors import as_arrays, encode_request

    inputs = as_arrays(_fit_inputs(deployer, name, request, node, dtype), dtype=dtype)
    return HttpRequest(path, *encode_request(inputs))


def _build_raw_headers(raw: bytes, deployer: Deployer, name: str, node: str | None) -> Mapping[str, str]:
    """Return the headers of a request of raw bytes. The answer comes as bytes too, unless numbers are declared."""
    metadata = fetch_metadata(deployer, name, node)
    _check_raw(raw, metadata.get("inputs") or ())
    outputs = {str(tensor["datatype"]) for tensor in metadata.get("outputs") or ()}
    accept = "application/json" if outputs and not outputs & _TYPES_OF_BYTES else f"{_BYTES}, application/json"
    return {"content-type": _BYTES, "accept": accept}


def _check_raw(raw: bytes, declared: Declared) -> None:
    """Refuse bytes for several inputs, and text for numbers, of which its bytes would be some.

    Raises:
        InvalidError: the message says what to give.
    """
    takes_numbers = any(str(tensor["datatype"]) not in {"BYTES", "UINT8", "INT8"} for tensor in declared)
    is_text = raw.isascii() and all(character.isprintable() or character.isspace() for character in raw.decode())
    if len(declared) > 1 or (takes_numbers and is_text):
        columns = ", ".join(repr(str(tensor["name"])) for tensor in declared)
        raise InvalidError(
            f"The service takes columns ({columns}), and the input is sent as raw bytes, as its name ends in no format "
            f"of a table. Give a file of {FORMATS}, or JSON: .json."
        )


class GrpcRequest(NamedTuple):
    """A gRPC request for a prediction."""

    method: str
    """The method's path: ``/SERVICE/METHOD``."""

    message: bytes


def to_grpc(
    deployer: Deployer, name: str, request: PredictRequest, *, node: str | None, dtype: str | None
) -> GrpcRequest:
    """Return a call of the Open Inference Protocol's ``ModelInfer``, with rows as raw tensors.

    Args:
        deployer: The deployer of the service.
        name: The service.
        request: Its ``inputs`` are sent.
        node: One node of the graph alone.
        dtype: The type of numbers; None: as the service declares.

    Raises:
        InvalidError: the request has no rows.
        MissingExtraError: protobuf is not installed.
    """
    if request.inputs is None:
        raise InvalidError(
            "gRPC sends tensors, and this input has none: it is bytes, or a JSON message. Give rows, "
            "--data '[[1, 2, 3]]' or --npy FILE, or leave out --grpc."
        )
    from scanflow.transport.tensors import INFER_METHOD, as_arrays, encode_grpc_request

    inputs = as_arrays(_fit_inputs(deployer, name, request, node, dtype), dtype=dtype)
    return GrpcRequest(INFER_METHOD, encode_grpc_request(node or name, inputs))


def to_call(
    deployer: Deployer,
    name: str,
    request: PredictRequest,
    *,
    node: str | None,
    dtype: str | None,
    seldon: bool = False,
    grpc: bool = False,
) -> HttpRequest | GrpcRequest:
    """Return a request for REST, or with ``grpc`` for gRPC: see :func:`to_http` and :func:`to_grpc`.

    Raises:
        InvalidError: the input cannot be sent over that protocol.
    """
    if not grpc:
        return to_http(deployer, name, request, node=node, dtype=dtype, seldon=seldon)
    if seldon:
        raise UsageError("--grpc uses the Open Inference Protocol, and --seldon uses Seldon's. Leave out one of them.")
    return to_grpc(deployer, name, request, node=node, dtype=dtype)


def send(
    deployer: Deployer, name: str, request: PredictRequest, *, node: str | None, dtype: str | None, seldon: bool
) -> PredictionResponse | dict[str, Any] | bytes:
    """Return a service's response: arrays for arrays, a document for a document, bytes for bytes."""
    if request.inputs is not None and not _is_seldon(request, seldon):
        from scanflow.deployer.direct_predictions import predict

        return predict(deployer, name, _fit_inputs(deployer, name, request, node, dtype), node=node, dtype=dtype)
    call = to_http(deployer, name, request, node=node, dtype=dtype, seldon=seldon)
    reply = _post(deployer, name, call)
    if request.raw is not None and call.headers.get("accept") == "application/json":
        from scanflow.transport.service_client import read_response

        return read_response(reply)
    is_json = request.raw is None or seldon or "json" in reply.headers.get("content-type", "")
    return _parse_document(reply.content) if is_json else reply.content


def _is_seldon(request: PredictRequest, seldon: bool) -> bool:
    return seldon or (request.message is not None and bool(_SELDON & request.message.keys()))


def _fit_inputs(deployer: Deployer, name: str, request: PredictRequest, node: str | None, dtype: str | None) -> Any:
    """Return a request's inputs with the types that the service declares: 1 in JSON may stand for 1.0."""
    if request.table is not None:
        declared = () if dtype is not None else fetch_declared(deployer, name, node)
        return _fit_table(request.table, request.inputs, declared)
    if dtype is not None or hasattr(request.inputs, "dtype"):
        return name_columns(request.inputs)
    return fit_inputs(request.inputs, fetch_declared(deployer, name, node))


def _fit_table(table: InputTable, inputs: Mapping[str, Any], declared: Declared) -> Any:
    """Return a table's columns with the types that the service declares.

    Raises:
        InvalidError: a column of numbers has words, or one of text has dates of which one is missing.
    """
    types = {str(tensor["name"]): str(tensor["datatype"]) for tensor in declared}
    times = [
        str(tensor["name"]) for tensor in declared if (tensor.get("parameters") or {}).get("content_type") == "datetime"
    ]
    for name, words in table.columns.words.items():
        if types.get(name) != "BYTES":
            word = next(word for word in words if word is not None)
            raise InvalidError(
                f"{table.path.name}: {name!r} is of numbers, and has {word!r} too. Mend or drop that row."
            )

    for name, values in table.columns.values.items():
        if types.get(name) == "BYTES" and name not in times and values.dtype.kind == "M" and (values != values).any():
            row = 1 + int((values != values).argmax())
            raise InvalidError(
                f"{table.path.name}: {name!r} has no date in row {row}, and the model takes text there. Fill or drop "
                "that row, or log the model with a signature that has date-times."
            )

    truths = {
        name: _read_truths(table.path.name, name, inputs[name])
        for name, datatype in types.items()
        if datatype == "BOOL" and name in inputs
    }
    inputs = {**inputs, **truths}

    # Of what no type is declared text goes as it stands in the file, as pandas reads it: a date may be just text.
    plain = [name for name in table.columns.from_texts if name not in types and inputs[name].dtype.kind in "MO"]
    if plain:
        inputs = {**inputs, **_read_columns(table.path, table.options, plain).values}

    def read_texts(names: Collection[str]) -> Mapping[str, Any]:
        texts = _read_columns(table.path, table.options, names).values
        return {name: _fill(texts[name], "NaT") if name in times else texts[name] for name in names}

    exact = {
        name: _to_whole(values)
        for name, values in table.columns.values.items()
        if types.get(name, "").lstrip("U").startswith("INT")
    }
    return fit_inputs({**inputs, **exact} if declared else inputs, declared, read_texts)


def _read_truths(file: str, name: str, values: Any) -> Any:
    """Return a column for truth values as such.

    Raises:
        InvalidError: a value is none.
    """
    from scanflow.tables.truths import WRITTEN, find_other_than_truths, read_truths

    if (other := find_other_than_truths(values)) is not None:
        raise InvalidError(f"{file}: the model takes truth values in {name!r}, and it has {other!r}. Write {WRITTEN}.")
    return read_truths(values)


def _round_large(values: Any) -> Any:
    """Return whole numbers that are too large for floats as the nearest floats; others as they are."""
    return values.astype(float) if values.dtype.kind == "f" and values.dtype.itemsize > 8 else values


def _to_whole(values: Any) -> Any:
    """Return whole numbers that are too large for floats as integers, if none is missing; others as they are."""
    rounded = _round_large(values)
    if rounded is values or (values != values).any():
        return rounded
    if values.min() >= -(2**63) and values.max() < 2**63:
        return values.astype("int64")
    return values.astype("uint64") if values.min() >= 0 else rounded


def _fill(texts: Any, text: str) -> Any:
    texts = texts.copy()
    texts[[value is None for value in texts]] = text
    return texts


def _read_columns(path: Path, options: ReadOptions, texts: Collection[str] = ()) -> Columns:
    try:
        from scanflow.tables.table_files import read_columns
    except ModuleNotFoundError as error:
        raise InvalidError(f"Reading {path.name!r} needs {error.name!r}. {explain_install('drift')}") from error
    return read_columns(path, options, texts=texts)


def _post(deployer: Deployer, name: str, request: HttpRequest) -> Reply:
    with deployer.connect(name) as client:
        reply: Reply = client.post(*request)
        return reply


def format_response(answer: PredictionResponse | Mapping[str, Any], *, as_json: bool) -> list[str]:
    if isinstance(answer, Mapping):
        return [json.dumps(to_document(answer), indent=2)]
    outputs = {name: _to_json_values(array) for name, array in answer.outputs.items()}
    if as_json:
        document = {"outputs": outputs, "instance": answer.instance, "revision": answer.revision}
        return [json.dumps(to_document(document))]
    lines = []
    for name, array in answer.outputs.items():
        lines.append(f"{name}  {array.dtype} {array.shape}")
        lines.append(str(array) if array.size > _MAX_SHOWN else json.dumps(outputs[name]))
    return [*lines, f"from instance {answer.instance}, revision {answer.revision}"]


def _build_seldon_message(request: PredictRequest) -> Mapping[str, Any]:
    if request.message is not None:
        return request.message
    if request.raw is not None:
        return {"binData": base64.b64encode(request.raw).decode()}
    inputs = name_columns(request.inputs)
    if isinstance(inputs, Mapping):
        raise InvalidError("Seldon's protocol takes one input. Give a list of rows, or leave out --seldon.")
    return {"data": {"ndarray": inputs.tolist() if hasattr(inputs, "tolist") else inputs}}


def _parse_bytes(content: bytes, source: str) -> PredictRequest:
    if content.startswith((_NUMPY, _ZIP)) and (content.startswith(_NUMPY) or source.endswith(".npz")):
        return PredictRequest(inputs=_load_array(content, source))
    if content.lstrip()[:1] in {b"[", b"{"}:
        try:
            return _parse_json(content.decode(), source)
        except (UnicodeDecodeError, InvalidError):
            pass  # it only began like JSON
    return PredictRequest(raw=content)


def _parse_json(text: str, source: str) -> PredictRequest:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidError(f"{source} is not JSON: {error}. Write rows, such as '[[1, 2, 3]]'.") from error
    if isinstance(document, dict) and (_SELDON & document.keys() or _are_tensors(document.get("inputs"))):
        return PredictRequest(message=document)
    return PredictRequest(inputs=document)


def _are_tensors(inputs: Any) -> bool:
    return isinstance(inputs, list) and bool(inputs) and all(isinstance(entry, dict) for entry in inputs)


def _load_array(content: bytes, source: str) -> Any:
    from scanflow.transport.tensors import load_arrays

    return load_arrays(io.BytesIO(content), source)


def _read_bytes(path: Path) -> bytes:
    try:
        return read_content(path)
    except FileNotFoundError as error:
        raise NotFoundError(f"There is no file {str(path)!r}. Give --data '[[1, 2, 3]]', or - for stdin.") from error
    except OSError as error:
        raise InvalidError(f"{str(path)!r} cannot be read: {error.strerror}. Name another file.") from error


def _parse_document(content: bytes) -> dict[str, Any]:
    document = json.loads(content)
    return document if isinstance(document, dict) else {"answer": document}


def _to_json_values(array: Any) -> Any:
    """Return an array in JSON types; bytes become text."""
    if array.dtype.kind == "O":
        return [value.decode(errors="replace") if isinstance(value, bytes) else value for value in array.ravel()]
    return array.tolist()
