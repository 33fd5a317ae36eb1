"""``@sf.step``: a Python function as a step, its parameters checked by their annotations."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, lru_cache, update_wrapper
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Generic, ParamSpec, TypeVar, get_type_hints, overload

from pydantic import ConfigDict, PydanticSchemaGenerationError, TypeAdapter, ValidationError

from scanflow.app.executor import Executor, Target
from scanflow.app.references import Ref, find_references, item
from scanflow.errors import InvalidError, did_you_mean
from scanflow.names import build_slug
from scanflow.text.masking import STARS, looks_secret, mask_secrets

P = ParamSpec("P")
R = TypeVar("R")


class Step(Generic[P, R]):
    """A function that can be a node of a workflow. It can still be called; ``bind`` makes a node of it."""

    function: Callable[P, R]
    fields: Mapping[str, Any]

    def __init__(self, function: Callable[P, R], fields: Mapping[str, Any] | None = None) -> None:
        if not callable(function):
            raise InvalidError(
                f"@sf.step decorates a function, and {function!r} is not a function. Give options by name: "
                "@sf.step(retries=2)."
            )
        name = getattr(function, "__name__", type(function).__name__)
        if inspect.iscoroutinefunction(function):
            raise InvalidError(f"The step {name!r} is async. Write a plain function that calls asyncio.run(...).")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise InvalidError(f"The step {name!r} yields. Return a list instead.")
        update_wrapper(self, function)
        self.function = function
        self.fields = dict(fields or {})

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function immediately; nodes and references are rejected, since they have no value yet."""
        if any(isinstance(argument, Executor | Ref) for argument in (*args, *kwargs.values())):
            name = self.function.__name__
            raise InvalidError(
                f"{name}(...) runs the step at once, but a node has no value yet. Write {name}.bind(...)."
            )
        return self.function(*args, **kwargs)

    def options(self, **fields: Any) -> Step[P, R]:
        """Return the same step with other fields of the executor: ``train.options(name="cnn1", retries=2)``."""
        option_names = set(Executor.model_fields) - {"kind", "mainfile", "function", "parameters"}
        for name in fields:
            if name not in option_names:
                raise InvalidError(
                    f"The step {self.function.__name__!r} has no option {name!r}.{did_you_mean(name, option_names)}"
                )
        return Step(self.function, {**self.fields, **fields})

    def bind(self, *args: Any, **kwargs: Any) -> Executor:
        """Return a node that calls the function with these arguments; nodes and references stand for their outputs."""
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise InvalidError(f"The step {self.function.__name__!r}: {error}. Its signature: {self}.") from None
        return self._build_node(self._collect_parameters(bound))

    def map(self, over: Executor | Ref | Sequence[Any], *args: Any, **kwargs: Any) -> Executor:
        """Return a node that runs once for each item of ``over``, a list or an output that is a list.

        The item is the function's first parameter that is not given here, unless an argument uses ``sf.item``.
        Later steps get the list of the results, in the order of the items.
        """
        if not find_references([list(args), kwargs, self.fields.get("when")]) or not _is_using_item(
            [*args, *kwargs.values()]
        ):
            taken = set(self.signature.bind_partial(*args, **kwargs).arguments)
            free = [name for name in self.signature.parameters if name not in taken]
            if not free:
                raise InvalidError(
                    f"The step {self.function.__name__!r} has no parameter left for the item. Its signature: {self}."
                )
            kwargs[free[0]] = item
        return self.options(for_each=over).bind(*args, **kwargs)

    @cached_property
    def signature(self) -> inspect.Signature:
        return inspect.signature(self.function)

    @cached_property
    def target(self) -> Target:
        return Target(_locate(self.function), self)

    def __str__(self) -> str:
        try:
            signature = inspect.signature(self.function, eval_str=True)
        except NameError:  # a name only imported under TYPE_CHECKING
            signature = self.signature
        return f"{self.function.__name__}{signature}"

    def _build_node(self, parameters: Mapping[str, Any]) -> Executor:
        name = self.fields.get("name") or build_slug(self.function.__name__)
        fields: dict[str, Any] = {**self.fields, "name": name}
        node = Executor(function=self.target, parameters=parameters, **fields)
        check_parameters(self.function, node.parameters, who=f"Step {name!r}")
        for element in node.for_each if isinstance(node.for_each, tuple) and not find_references(node.for_each) else ():
            task_parameters = {key: element if value == item else value for key, value in node.parameters.items()}
            check_parameters(self.function, task_parameters, who=f"Step {name!r}")
        return node

    def _collect_parameters(self, bound: inspect.BoundArguments) -> dict[str, Any]:
        parameters: dict[str, Any] = {}
        for name, value in bound.arguments.items():
            kind = self.signature.parameters[name].kind
            if kind is inspect.Parameter.VAR_POSITIONAL:
                raise InvalidError(
                    f"The step {self.function.__name__!r} takes *{name}; give a step a list parameter instead."
                )
            parameters.update(value if kind is inspect.Parameter.VAR_KEYWORD else {name: value})
        return parameters


@overload
def step(function: Callable[P, R], /) -> Step[P, R]: ...
@overload
def step(**fields: Any) -> Callable[[Callable[P, R]], Step[P, R]]: ...
def step(
    function: Callable[P, R] | None = None, /, **fields: Any
) -> Step[P, R] | Callable[[Callable[P, R]], Step[P, R]]:
    """Make a function usable as a step: ``@sf.step``, or ``@sf.step(retries=2, timeout="5m")``.

    The fields are those of ``sf.Executor``. The step runs in a process of its own unless ``in_process=True``.
    """
    if function is None:
        return lambda inner: Step(inner).options(**fields)
    return Step(function)


def check_parameters(function: Callable[..., Any], parameters: Mapping[str, Any], *, who: str) -> dict[str, Any]:
    """Validate the parameters by the annotations; references are not checked. InvalidError: one does not fit."""
    signature, hints = _get_signature(function)
    takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in signature.parameters.values())
    checked: dict[str, Any] = {}
    for name, value in parameters.items():
        if name not in signature.parameters and not takes_any:
            raise InvalidError(f"{who} has no parameter {name!r}.{did_you_mean(name, signature.parameters)}")
        if not find_references(value):
            value = _validate(value, hints.get(name, Any), f"{who}: the parameter {name!r}", secret=looks_secret(name))
        checked[name] = value
    for name, parameter in signature.parameters.items():
        plain = parameter.kind not in {inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL}
        if plain and parameter.default is inspect.Parameter.empty and name not in parameters:
            raise InvalidError(f"{who} needs the parameter {name!r}.")
    return checked


def get_defaults(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the defaults of a function's parameters, as far as JSON can hold them."""
    defaults = {}
    for name, parameter in _get_signature(function)[0].parameters.items():
        if parameter.default is not inspect.Parameter.empty and _is_json(parameter.default):
            defaults[name] = parameter.default
    return defaults


def _is_json(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_json, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_json(inner) for key, inner in value.items())
    return value is None or isinstance(value, bool | int | float | str)


def check_result(function: Callable[..., Any], value: Any, *, who: str) -> Any:
    """Validate what a function returned; InvalidError: it does not fit its annotation."""
    return _validate(value, _get_signature(function)[1].get("return", Any), f"{who}: its result")


def _validate(value: Any, hint: Any, what: str, *, secret: bool = False) -> Any:
    adapter = None if hint is Any else _build_adapter(hint)
    if adapter is None:
        return value
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        reason = error.errors(include_url=False)[0]["msg"]
        shown = STARS if secret else f"{mask_secrets(value)!r:.60}"
        raise InvalidError(f"{what} is {shown}, which is not {_format_type(hint)}: {reason}.") from None


@lru_cache(maxsize=256)
def _build_adapter(hint: Any) -> TypeAdapter[Any] | None:
    """Return a type's validator, by isinstance for types that pydantic does not know; None: there is none."""
    try:
        return TypeAdapter(hint, config=None if _is_model(hint) else ConfigDict(arbitrary_types_allowed=True))
    except PydanticSchemaGenerationError:
        return None


@lru_cache(maxsize=256)
def _get_signature(function: Callable[..., Any]) -> tuple[inspect.Signature, Mapping[str, Any]]:
    plain = getattr(function, "function", function)
    try:
        hints = get_type_hints(plain)
    except NameError:  # a name only imported under TYPE_CHECKING: there is nothing to check that one against
        hints = {}
        for name, annotation in getattr(plain, "__annotations__", {}).items():
            with suppress(NameError):
                alone = SimpleNamespace(__annotations__={name: annotation})
                hints |= get_type_hints(alone, getattr(plain, "__globals__", {}))
    return inspect.signature(plain), hints


def _is_model(hint: Any) -> bool:
    return (
        hasattr(hint, "__pydantic_core_schema__") or hasattr(hint, "__dataclass_fields__") or hasattr(hint, "__total__")
    )


def _format_type(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) else str(hint)


def _is_using_item(values: Sequence[Any]) -> bool:
    return any(ref.step is None for ref in find_references(list(values)))


def _locate(function: Callable[..., Any]) -> str:
    """Name a function by its file, or by its module inside a package, whose imports need the name.

    What a program or notebook defines itself stays ``__main__:name``: finding it in its file would run that again.
    """
    module, name = function.__module__, function.__qualname__
    if module == "__main__":
        return f"{module}:{name}"
    file = getattr(sys.modules.get(module), "__file__", None)
    if "." in module:
        return f"{module}:{name}"
    return f"{Path(file).name if file else module}:{name}"
