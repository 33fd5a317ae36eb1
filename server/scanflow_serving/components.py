"""A loaded node of an inference graph: a user's class or a model of the registry."""

from __future__ import annotations

import asyncio
import inspect
import traceback
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from numpy.typing import NDArray

from scanflow.arrays import fill_masked_parts
from scanflow.errors import InvalidError, ScanflowError, UsageError, did_you_mean
from scanflow.instance_messages import Node
from scanflow.modules import load_function
from scanflow.text.tracebacks import read_text
from scanflow_serving.inference_problems import ProblemError
from scanflow_serving.instance_gpu import (
    find_out_of_device_memory,
    free_cached_memory,
    free_dropped_memory,
    is_device_broken,
    is_of_device,
    is_out_of_device_memory,
)
from scanflow_serving.instance_secrets import secrets
from scanflow_serving.signature import UNDECLARED, NodeSignature, read_declaration

Call = Callable[[Any, Any, dict[str, Any]], Any]
"""A component's method, called with the value, its column names and the request's metadata; a COMBINER's with lists of
the first two."""

RunAsync = Callable[[Coroutine[Any, Any, Any]], Any]
"""Runs a coroutine on the instance's loop, from another thread, and returns its result."""

METHODS_BY_ROLE: Final = {
    "MODEL": "predict",
    "TRANSFORMER": "transform_input",
    "OUTPUT_TRANSFORMER": "transform_output",
    "ROUTER": "route",
    "COMBINER": "aggregate",
}
"""The method of each role, by Seldon's names."""

_OWN_FOLDERS: Final = (str(Path(__file__).parent), str(Path(inspect.getfile(load_function)).parent))
_FRAMES_READ: Final = 60
_UNSIGNED: Final = "send what it was trained with, in its types (an array of float32, or datatype FP32)."
_NAMELESS: Final = frozenset({"input", "input-0"})
"""The names of inputs that have none: of our client, and of the protocols' tensors."""

PARAMETERS: Final = "parameters"
"""The key of a request's metadata that holds the parameters for its models."""


class Component:
    """The callable of a node with its metadata; ``subject`` is the user's object."""

    def __init__(
        self,
        node: Node,
        call: Call,
        *,
        platform: str = "python",
        signature: NodeSignature = UNDECLARED,
        is_async: bool = False,
        subject: object = None,
        notes: tuple[str, ...] = (),
    ) -> None:
        self.node = node
        self.name = node.name
        self.call = call
        self.platform = platform
        """For the model's metadata: ``python``, ``tensorflow``, ``sklearn``, ``onnxruntime``, ``pyfunc``."""

        self.signature = signature
        self.notes = notes
        self.is_async = is_async
        self.blocks = getattr(subject, "blocking", None) is not False
        """Whether a call may block, and so needs a thread; else it is made on the loop."""

        self.subject = subject
        self.tags = _find_method(subject, "tags")
        self.metrics = _find_method(subject, "metrics")
        self.health = _find_method(subject, "health_status")
        self.feedback = _find_method(subject, "send_feedback")
        named: Any = getattr(subject, "class_names", None)
        named = named() if callable(named) else named
        self.class_names = None if named is None else [str(name) for name in named]

    def takes_column(self, named: tuple[str, NDArray[Any]]) -> bool:
        """Whether a single named input is a column of a table: one of several that are declared, or, for a model that
        declares nothing, any that has a name of its own, as each of several is."""
        name, array = named
        if self.signature.inputs:
            return self.signature.has_column(name)
        return self.node.model is not None and array.ndim == 1 and name not in _NAMELESS

    @property
    def takes_moments(self) -> bool:
        """Whether it takes date-times as such: a model that declares nothing, which else would get them as text."""
        return self.node.model is not None and not self.signature.inputs

    @property
    def version(self) -> str:
        return str(self.node.model.version) if self.node.model else ""


def load_component(node: Node, *, threads: int, run_async: RunAsync = asyncio.run) -> Component:
    """Load a node and warm it up: runs the user's code, and may take long.

    Raises:
        UsageError: it cannot be loaded. Where its GPU has too little memory, it has no cause: the frames that hold what
            was loaded of it are let go, and the memory is given back.
    """
    who = f"The node {node.name!r}"
    try:
        node = replace(node, parameters=secrets.resolve(node.parameters))
        if node.model is not None:
            return _from_registry(node, threads)
        return _from_class(node, who, run_async)
    except BaseException as error:  # a user's code may raise anything, and must not end the instance
        full = find_out_of_device_memory(error)
        if full is None:
            if isinstance(error, ScanflowError):
                raise
            if isinstance(error, ProblemError):
                raise UsageError(f"{who} cannot be warmed up: {error.detail}") from error
            frames, cause = _describe_cause(error)
            raise UsageError("\n  ".join([f"{who} cannot be loaded:", *frames, *cause.splitlines()])) from error
        _, reason = _describe_cause(full)
        del full
    free_dropped_memory()
    raise UsageError(
        f"{who} cannot be loaded: it needs more memory than its GPU has left. Ask for a larger gpu= or gpu_memory=. "
        f"{reason}"
    )


def make_component_problem(who: str, error: BaseException) -> ProblemError:
    """Return the problem of a component's exception, with the frames of the user's code.

    An exception may choose its status by an attribute ``status_code``, as in Seldon. A GPU whose memory is used up is
    503: the instance lives on, and a smaller request, or a later one, may be answered. Where a
    GPU, or a program on it, failed, its process can use it no more: the instance is to be replaced.
    """
    if isinstance(error, ProblemError):
        return error
    frames, cause = _describe_cause(error)
    if is_out_of_device_memory(error):
        free_cached_memory()
        return ProblemError(
            503,
            # What to do comes first: PyTorch's own text is long, and cut where it is shown.
            f"{who} needs more memory than its GPU has left: send smaller batches, or deploy it with a larger gpu= or "
            f"gpu_memory=. {cause}",
            retry_after_s=1.0,
            extra={"frames": list(frames), "exception": type(error).__name__},
        )
    if is_device_broken(error):
        # Not 503: who asks again would break one instance after the other with what may be the request's fault.
        first_line = cause.partition("\n")[0]
        problem = ProblemError(500, f"{who} cannot use its GPU any more: {first_line}. The instance is replaced.")
        problem.is_lasting = True
        return problem
    status = getattr(error, "status_code", None)
    if not isinstance(status, int) or not 400 <= status <= 599:
        status = 500
    return ProblemError(
        status, f"{who} raised {cause}", extra={"frames": list(frames), "exception": type(error).__name__}
    )


def _describe_cause(error: BaseException) -> tuple[tuple[str, ...], str]:
    text = "".join(traceback.format_exception(error, limit=-_FRAMES_READ))
    frames, cause = read_text(secrets.mask(text), *_OWN_FOLDERS)
    return frames, cause or type(error).__name__


def _find_method(subject: object, name: str) -> Callable[..., Any] | None:
    method = getattr(subject, name, None)
    return method if callable(method) else None


def _from_registry(node: Node, threads: int) -> Component:
    from scanflow_serving.flavors import open_model

    assert node.model is not None
    predictor = open_model(node.model, node.parameters, threads=threads, follows_node=bool(node.parents))
    predict, signature = predictor.predict, predictor.signature
    who = f"The model {node.model.name!r}, version {node.model.version},"
    unsure = (TypeError,) if signature.inputs else (TypeError, LookupError, AttributeError)

    def call(value: Any, names: Any, meta: dict[str, Any]) -> Any:
        try:
            return predict(fill_masked_parts(value), names, meta.get(PARAMETERS))
        except (ValueError, RuntimeError, *unsure) as error:
            if isinstance(error, RuntimeError) and (type(error) not in predictor.input_errors or is_of_device(error)):
                raise
            takes = (
                f"It takes {signature.format_inputs()}." if signature.inputs else "It has no signature: " + _UNSIGNED
            )
            reason = f"{error!s:.1000}".rstrip(".")
            raise ProblemError(422, f"{who} refused this input: {type(error).__name__}: {reason}. {takes}") from error

    return Component(node, call, platform=predictor.platform, signature=signature, notes=predictor.notes)


def _from_class(node: Node, who: str, run_async: RunAsync) -> Component:
    assert node.implementation is not None
    factory = load_function(node.implementation, Path(node.file) if node.file else None)
    subject = _construct(factory, node, who)

    def run_once(name: str) -> None:
        if callable(method := getattr(subject, name, None)) and inspect.iscoroutine(result := method()):
            run_async(result)

    run_once("load")
    name = METHODS_BY_ROLE[node.role]
    method = getattr(subject, name, None)
    if not callable(method):
        there = [other for other in METHODS_BY_ROLE.values() if callable(getattr(subject, other, None))]
        others = f" It has {', '.join(there)}: check the role." if there else ""
        raise InvalidError(
            f"{who} is a {node.role}, so {node.implementation!r} needs a method {name!r}, which is missing.{others}"
        )
    if inspect.isgeneratorfunction(method) or inspect.isasyncgenfunction(method):
        raise InvalidError(f"{node.implementation}.{name} yields its result, but one answer is sent. Return a list.")
    call, declared_signature = _adapt(method, f"{node.implementation}.{name}"), read_declaration(subject, who)
    run_once("warm_up")
    run_once("health_status")
    is_async = any(map(inspect.iscoroutinefunction, (method, getattr(method, "__call__", None))))  # noqa: B004
    return Component(node, call, signature=declared_signature, is_async=is_async, subject=subject)


def _construct(factory: Callable[..., Any], node: Node, who: str) -> object:
    if not inspect.isclass(factory):
        raise InvalidError(
            f"{who}: {node.implementation!r} is not a class. Write a class with a method "
            f"{METHODS_BY_ROLE[node.role]!r}."
        )
    try:
        signature = inspect.signature(factory)
    except (ValueError, TypeError):  # a class written in C may have no signature
        return factory(**node.parameters)
    names = [
        parameter.name
        for parameter in signature.parameters.values()
        if parameter.kind in {parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY}
    ]
    anything = any(parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values())
    if not anything and (unknown := next((name for name in node.parameters if name not in names), None)):
        hint = did_you_mean(unknown, names) if names else " It takes none."
        raise InvalidError(f"{who}: {node.implementation!r} has no parameter {unknown!r}.{hint}")
    try:
        signature.bind(**node.parameters)
    except TypeError as error:
        raise InvalidError(
            f"{who}: {node.implementation!r} cannot be created: {error}. Set it in 'parameters'."
        ) from error
    subject: object = factory(**node.parameters)
    return subject


def _adapt(method: Callable[..., Any], what: str) -> Call:
    """Wrap a method to take value, names and meta, and pass on those it accepts."""
    try:
        parameters = list(inspect.signature(method).parameters.values())
    except (ValueError, TypeError):  # one written in C may have no signature
        return lambda value, _names, _meta: method(value)
    places = [
        parameter
        for parameter in parameters
        if parameter.kind in {parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD}
    ]
    kinds = {parameter.kind for parameter in parameters}
    if not places and inspect.Parameter.VAR_POSITIONAL not in kinds:
        raise InvalidError(f"{what} takes no argument. Its first argument must be the request's value.")
    by_keyword = inspect.Parameter.VAR_KEYWORD in kinds or any(
        parameter.name == "meta" and parameter.kind is not parameter.POSITIONAL_ONLY for parameter in parameters
    )
    used = 1 + (len(places) > 1 and places[1].name != "meta")
    if used == 2 and not by_keyword and len(places) > 2 and places[2].default is inspect.Parameter.empty:
        used = 3
    for parameter in [
        *places[used:],
        *(parameter for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY),
    ]:
        if parameter.default is inspect.Parameter.empty and parameter.name != "meta":
            raise InvalidError(f"{what} needs an argument {parameter.name!r} that is not passed. Give it a default.")
    if used == 3 or not places:
        return method
    if used == 2:
        if by_keyword:
            return lambda value, names, meta: method(value, names, meta=meta)
        return lambda value, names, _meta: method(value, names)
    if by_keyword:
        return lambda value, _names, meta: method(value, meta=meta)
    return lambda value, _names, _meta: method(value)
