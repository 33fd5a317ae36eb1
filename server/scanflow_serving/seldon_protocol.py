"""Seldon's protocol, version 1: predictions and feedback in JSON."""

from __future__ import annotations

import base64
import copy
import inspect
import json
import sys
import uuid
from collections.abc import Callable, Mapping
from datetime import date, timedelta
from typing import Any, Final
from urllib.parse import parse_qs

import msgspec
import numpy as np
from numpy.typing import NDArray

from scanflow.arrays import fill_masked, is_missing
from scanflow_serving import tftensor
from scanflow_serving.component_graph import Graph, GraphTraversal, Outcome
from scanflow_serving.inference_problems import ProblemError, invalid, refuse_multipart
from scanflow_serving.messages import Body
from scanflow_serving.oip_tensors import check_finite, check_shape, make_infinite_problem
from scanflow_serving.results import RETURNED, format_moment, name_outputs, to_values

REVISION_TAG: Final = "scanflow.revision"
"""The tag with the revision of an answer, by which feedback finds it."""

_DATA: Final = ("ndarray", "tensor", "tftensor")
_FORM: Final = "application/x-www-form-urlencoded"
_MAX_FIELDS: Final = 16
_KINDS: Final = ("data", "binData", "strData", "jsonData")
_writer: Final = msgspec.json.Encoder()


class Prediction(msgspec.Struct, eq=False):
    """A Seldon message: a value of one kind, and metadata."""

    value: Any
    names: list[str]
    meta: dict[str, Any]
    kind: str
    """One of ``_DATA`` or ``binData``, ``strData``, ``jsonData``; the response has the same."""


class Feedback(msgspec.Struct, eq=False):
    """Feedback on an answer: its reward or the true value."""

    request: Prediction | None
    reward: float
    truth: Any
    routing: dict[str, int]
    tags: dict[str, Any]


def decode(body: Body, *, allow_nan: bool, media: str = "") -> Prediction:
    """Decode a message from JSON, or from a form (``media``) with a field ``json``."""
    return _parse_message(_parse(body, media, allow_nan=allow_nan), "The request", allow_nan=allow_nan)


def decode_feedback(body: Body, *, allow_nan: bool, media: str = "") -> Feedback:
    document = _parse(body, media, allow_nan=allow_nan)
    reward = document.get("reward", 0.0)
    if isinstance(reward, bool) or not isinstance(reward, (int, float)) or abs(reward) > sys.float_info.max:
        raise invalid(f"'reward' should be a 64-bit number, but is {reward!s:.60}.")
    if not any(document.get(name) for name in ("request", "response", "truth")) and "reward" not in document:
        raise invalid("Feedback needs a 'reward', a 'truth' or both, and its 'request' and 'response'.")
    request = document.get("request")
    truth = document.get("truth")
    response = document.get("response") or {}
    meta = response.get("meta") if isinstance(response, dict) else None
    meta = meta if isinstance(meta, dict) else {}
    routing = meta.get("routing") or {}
    if not isinstance(routing, dict):
        raise invalid(f"'response.meta.routing' should be an object of branches by node, but is {routing!r:.60}.")
    routing = {str(name): branch for name, branch in routing.items() if isinstance(branch, int)}
    tags = meta.get("tags")
    return Feedback(
        _parse_message(request, "'request'", allow_nan=allow_nan) if request else None,
        float(reward),
        _parse_message(truth, "'truth'", allow_nan=allow_nan).value if truth else None,
        routing,
        tags if isinstance(tags, dict) else {},
    )


def encode(request: Prediction, outcome: Outcome, walk: GraphTraversal, revision: str) -> bytes:
    meta: dict[str, Any] = {
        "puid": request.meta.get("puid") or uuid.uuid4().hex,
        "tags": {**walk.tags, REVISION_TAG: revision},
        "routing": walk.routing,
        "requestPath": dict.fromkeys(walk.path, revision),
    }
    if walk.metrics:
        meta["metrics"] = [metric for _, metric in walk.metrics]
    try:
        return _writer.encode({**_make_payload(outcome, request.kind), "meta": meta})
    except (TypeError, UnicodeEncodeError, RecursionError, ValueError) as error:
        raise ProblemError(
            500, f"{outcome.step.who} returned a value that is not valid JSON: {str(error)[:200]}. {RETURNED}"
        ) from error


def give_feedback(graph: Graph, feedback: Feedback, finish: Callable[[Any], Any]) -> int:
    """Send feedback to the nodes on the request's path that take it; return their number. ``finish`` runs
    coroutines."""
    features = feedback.request.value if feedback.request else None
    names = feedback.request.names if feedback.request else []
    count = 0
    for step in graph.steps:
        method = step.component.feedback
        if method is None or not _has_taken_part(graph, step.place, feedback.routing):
            continue
        routing = feedback.routing.get(step.name)
        arguments = (features, names, feedback.reward, feedback.truth, routing)
        result = method(*copy.deepcopy(arguments[: _count_arguments(method)]))  # a node may change what it gets
        if inspect.isawaitable(result):
            finish(result)
        count += 1
    return count


def _has_taken_part(graph: Graph, place: int, routing: Mapping[str, int]) -> bool:
    step = graph.steps[place]
    if not step.parents:
        return True
    for parent in step.parents:
        above = graph.steps[parent]
        chosen = routing.get(above.name) if above.routes else None
        taken = chosen is None or not 0 <= chosen < len(above.children) or above.children[chosen] == place
        if taken and _has_taken_part(graph, parent, routing):
            return True
    return False


def _count_arguments(method: Callable[..., Any]) -> int:
    """Return how many of features, names, reward, truth and routing a method takes."""
    try:
        parameters = inspect.signature(method).parameters.values()
    except (ValueError, TypeError):
        return 4
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
        return 5
    return min(
        5,
        sum(parameter.kind in {parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD} for parameter in parameters),
    )


def _parse(body: Body, media: str, *, allow_nan: bool) -> dict[str, Any]:
    if media.startswith(_FORM):
        fields = parse_qs(bytes(body).decode("utf-8", "replace"), max_num_fields=_MAX_FIELDS)
        if len(fields.get("json", ())) != 1:
            raise invalid("A form should have one field 'json', which holds the message.")
        body = fields["json"][0].encode()
    refuse_multipart(media)
    if not len(body):
        raise invalid('The body is empty. Send a prediction: {"data": {"ndarray": [[1.0, 2.0]]}}.')
    try:
        document = json.loads(bytes(body)) if allow_nan and b"N" in bytes(body) else msgspec.json.decode(body)
    except (ValueError, RecursionError) as error:
        if isinstance(error, RecursionError):
            raise invalid("The body is nested too deeply.") from None
        nan = " JSON has neither NaN nor Infinity." if b"NaN" in bytes(body) or b"Infinity" in bytes(body) else ""
        raise invalid(f"The body is not JSON: {str(error).removeprefix('JSON is malformed: ')[:200]}.{nan}") from None
    if not isinstance(document, dict):
        raise invalid(f"The body should be a JSON object with one of {', '.join(_KINDS)}.")
    return document


def _parse_message(document: Any, where: str, *, allow_nan: bool) -> Prediction:
    if not isinstance(document, dict):
        raise invalid(f"{where} should be a JSON object with one of {', '.join(_KINDS)}.")
    kinds = [kind for kind in _KINDS if kind in document]
    if len(kinds) != 1:
        problem = f"has {' and '.join(kinds)}" if kinds else f"has none of {', '.join(_KINDS)}"
        raise invalid(f"{where} {problem}: it should have exactly one of them.")
    meta = document.get("meta")
    meta = meta if isinstance(meta, dict) else {}
    kind, content = kinds[0], document[kinds[0]]
    if kind == "data":
        return _parse_data(content, where, meta, allow_nan=allow_nan)
    if kind == "jsonData":
        return Prediction(content, [], meta, kind)
    if not isinstance(content, str):
        raise invalid(f"{where}: {kind} should be text, but is {content!r:.60}.")
    if kind == "strData":
        return Prediction(content, [], meta, kind)
    try:
        return Prediction(base64.b64decode(content, validate=True), [], meta, kind)
    except ValueError as error:  # binascii.Error is one; another is raised for letters outside ASCII
        raise invalid(f"{where}: binData should be base64: {error}.") from None


def _parse_data(content: Any, where: str, meta: dict[str, Any], *, allow_nan: bool) -> Prediction:
    kinds = [kind for kind in _DATA if isinstance(content, dict) and kind in content]
    if len(kinds) != 1:
        raise invalid(f"{where}: data should have either 'ndarray' or 'tensor' or 'tftensor'.")
    kind = kinds[0]
    names = content.get("names") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise invalid(f"{where}: data.names should be a list of strings.")
    place = f"{where}: data.{kind}"
    if kind == "ndarray":
        array = _parse_array(content[kind], place, allow_nan=allow_nan)
    elif kind == "tensor":
        array = _parse_tensor(content[kind], place)
    else:
        array = tftensor.decode(content[kind], place, allow_nan=allow_nan)
    if names and (array.ndim < 2 or array.shape[1] != len(names)):
        raise invalid(f"{where}: data.names has {len(names)} names, but the data has the shape {list(array.shape)}.")
    if array.dtype.kind == "f" and not allow_nan:
        check_finite(array, where)
    return Prediction(array, names, meta, kind)


def _parse_array(rows: Any, where: str, *, allow_nan: bool) -> NDArray[Any]:
    if not isinstance(rows, list):
        raise invalid(f"{where} should be a list, but is {rows!r:.60}.")
    try:
        array = np.array(rows)
    except (ValueError, OverflowError) as error:
        why = "is nested too deeply" if "maximum supported dimension" in str(error) else "has rows of different lengths"
        raise invalid(f"{where} {why}.") from None
    if array.dtype.kind == "U":  # a number among texts would have become a text itself
        array = np.array(rows, dtype=object)
    if array.dtype.kind == "O":
        if any(isinstance(element, int) and not -(2**63) <= element < 2**64 for element in array.flat):
            raise invalid(f"{where} holds an integer beyond 64 bits.")
        if any(element is None for element in array.flat):
            array = _fill_gaps(array, where, allow_nan=allow_nan)
        if array.dtype.kind == "O" and any(isinstance(element, (dict, list)) for element in array.flat):
            raise invalid(f"{where} should hold numbers or strings, in rows of the same length.")
    return array


def _fill_gaps(array: NDArray[Any], where: str, *, allow_nan: bool) -> NDArray[Any]:
    """Return null as NaN, a missing number, where these are allowed; ProblemError (400) names the first otherwise."""
    place = next(place for place, element in enumerate(array.flat) if element is None)
    if not allow_nan:
        raise make_infinite_problem(f"{where}: element {place}")
    filled = np.array([np.nan if element is None else element for element in array.flat], dtype=object)
    numbers = all(isinstance(element, (int, float)) and not isinstance(element, bool) for element in filled)
    return (filled.astype(float) if numbers else filled).reshape(array.shape)


def _parse_tensor(document: Any, where: str) -> NDArray[Any]:
    if not isinstance(document, dict) or not isinstance(document.get("values"), list):
        raise invalid(f"{where} should have a list 'values' and a list 'shape'.")
    shape = document.get("shape", [len(document["values"])])
    if not isinstance(shape, list) or not all(isinstance(size, int) and not isinstance(size, bool) for size in shape):
        raise invalid(f"{where}.shape should be a list of whole numbers.")
    count = check_shape(shape, where)
    try:
        values = msgspec.convert(document["values"], list[float])
    except msgspec.ValidationError as error:
        raise invalid(f"{where}.values should hold numbers: {error}.") from None
    if len(values) != count:
        raise invalid(f"{where}: the shape {shape} requires {count} values, but there are {len(values)}.")
    return np.array(values, dtype=np.float64).reshape(shape)


def _make_payload(outcome: Outcome, kind: str) -> dict[str, Any]:
    value, who = outcome.value, outcome.step.who
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"binData": base64.b64encode(bytes(value)).decode()}
    if isinstance(value, str):
        return {"strData": value}
    if isinstance(value, dict):
        value = name_outputs(value, who)
    records = isinstance(value, list) and any(isinstance(item, dict) for item in value)
    if isinstance(value, dict) or records or kind == "jsonData":
        return {"jsonData": to_plain(value)}
    array = to_values(value, who)
    names = [str(name) for name in outcome.names or ()]
    if not names and array.ndim > 1:
        names = [f"t:{place}" for place in range(array.shape[1])]
    if kind == "tensor" and array.dtype.kind != "O":
        return {"data": {"names": names, "tensor": {"shape": array.shape, "values": array.ravel().tolist()}}}
    if kind == "tftensor" and (tensor := tftensor.encode(array)) is not None:
        return {"data": {"names": names, "tftensor": tensor}}
    return {"data": {"names": names, "ndarray": to_plain(array)}}


def to_plain(value: Any) -> Any:
    """Return a value for JSON: arrays and numpy's numbers as lists and numbers, at any depth."""
    if isinstance(value, dict):
        return {str(name): to_plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    if isinstance(value, (np.datetime64, date, np.timedelta64, timedelta)):
        return None if is_missing(value) else format_moment(value)
    if isinstance(value, np.ndarray) and value.dtype.kind in "mM":
        return to_plain(list(fill_masked(value))) if value.ndim else to_plain(value[()])
    if isinstance(value, (np.ndarray, np.generic)):
        return to_plain(value.tolist())
    if is_missing(value):
        return None
    return value.decode(errors="replace") if isinstance(value, bytes) else value
