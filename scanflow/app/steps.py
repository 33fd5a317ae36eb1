"""``@sf.step``: a Python function as a step, its parameters checked by their annotations."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, lru_cache, partial, update_wrapper
from pathlib import Path, PurePath
from types import SimpleNamespace
from typing import Any, Generic, ParamSpec, TypeVar, get_args, get_origin, get_type_hints, overload

from scanflow.app.annotations import Exact, check_value, find_difference, restore_exact, validate_value
from scanflow.app.executor import Executor, Target
from scanflow.app.fan_out import FanOut, choose_fan_out
from scanflow.app.model import shorten
from scanflow.app.parameters import is_exact_json, with_article
from scanflow.app.references import Ref, item, list_references
from scanflow.app.secrets import Secret, iterate_secrets
from scanflow.errors import InvalidError, did_you_mean
from scanflow.names import build_slug
from scanflow.text.secret_names import looks_secret

P = ParamSpec("P")
R = TypeVar("R")


class Step(Generic[P, R]):
    """A function that can be a node of a workflow. It can still be called; ``bind`` makes a node of it."""

    function: Callable[P, R]
    fields: Mapping[str, Any]
    __name__: str

    def __init__(self, function: Callable[P, R], fields: Mapping[str, Any] | None = None) -> None:
        if not callable(function):
            raise InvalidError(
                f"@sf.step decorates a function, and {shorten(function)} is not a function. Give options by name: "
                "@sf.step(retries=2)."
            )
        name = _get_name(function)
        any_function: Any = function  # whose kind a type checker narrows otherwise
        called = function if inspect.isroutine(any_function) else getattr(function, "__call__", function)  # noqa: B004
        if any(map(inspect.iscoroutinefunction, (function, called))):
            raise InvalidError(f"The step {name!r} is async. Write a plain function that calls asyncio.run(...).")
        calls: tuple[Any, ...] = (function, called)
        if any(inspect.isgeneratorfunction(call) or inspect.isasyncgenfunction(call) for call in calls):
            raise InvalidError(f"The step {name!r} yields. Return a list instead.")
        update_wrapper(self, function)
        self.__name__ = name
        self.function = function
        self.fields = dict(fields or {})

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function immediately; nodes and references are rejected, since they have no value yet."""
        __tracebackhide__ = True  # IPython and pytest leave this frame out of an error of the function
        if any(isinstance(argument, Executor | Ref | Secret) for argument in (*args, *kwargs.values())):
            name = self.__name__
            raise InvalidError(
                f"{name}(...) runs the step at once, but a node or a secret has no value yet. Write {name}.bind(...)."
            )
        return self.function(*args, **kwargs)

    def options(self, **fields: Any) -> Step[P, R]:
        """Return the same step with other fields of the executor: ``train.options(name="cnn1", retries=2)``."""
        option_names = set(Executor.model_fields) - {"kind", "mainfile", "function", "parameters"}
        for name in fields:
            if name not in option_names:
                raise InvalidError(
                    f"The step {self.__name__!r} has no option {name!r}.{did_you_mean(name, option_names)}"
                )
        return Step(self.function, {**self.fields, **fields})

    def bind(self, *args: Any, **kwargs: Any) -> Executor:
        """Return a node that calls the function with these arguments; nodes and references stand for their outputs."""
        return self._build_node(self._collect_parameters(self._match(self._matched.bind, args, kwargs)))

    def map(
        self, over: Executor | Ref | Sequence[Any] | FanOut | None = None, /, *args: Any, **kwargs: Any
    ) -> Executor:
        """Return a node that runs once for each item of ``over``, a list or an output that is a list.

        The item is the function's first parameter that is not given here, unless an argument uses ``sf.item``.
        Without ``over`` it runs for each item of the only list given by name: ``train.map(rate=[0.1, 0.2],
        frame=frame)``. ``over`` may be several lists: ``sf.zipped(rate=..., depth=...)`` or ``sf.crossed(...)``.
        Later steps get the list of the results, in the order of the items.

        Raises:
            InvalidError: an argument is wrong, or it is not clear which one is the list.
        """
        if over is None and "over" in kwargs and "over" not in self.signature.parameters:
            over = kwargs.pop("over")
        if isinstance(over, FanOut):
            return self._map_over_several(over, args, kwargs)
        if over is None:
            given = self._collect_parameters(self._match(self._matched.bind_partial, args, kwargs))
            name = choose_fan_out(given, self._takes_list, self.__name__)
            return self.options(for_each=given[name]).bind(**{**given, name: item})
        if not list_references([list(args), kwargs, self.fields.get("when")]) or not _is_using_item(
            [*args, *kwargs.values()]
        ):
            taken = set(self._match(self._matched.bind_partial, args, kwargs).arguments)
            free = [name for name in self.signature.parameters if name not in taken]
            if not free:
                raise InvalidError(
                    f"The step {self.__name__!r} has no parameter left for the item. Its signature: {self}."
                )
            kwargs[free[0]] = item
        return self.options(for_each=over).bind(*args, **kwargs)

    def _map_over_several(self, over: FanOut, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Executor:
        if doubled := [name for name in over.names if name in kwargs]:
            raise InvalidError(
                f"The step {self.__name__!r} is given {doubled[0]!r} twice: as a list to fan out, and alone."
            )
        items = {name: item[name] for name in over.names}
        return self.options(for_each=list(over.items)).bind(*args, **kwargs, **items)

    def _match(
        self, match: Callable[..., inspect.BoundArguments], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> inspect.BoundArguments:
        """Match arguments with the function's parameters; InvalidError: one is wrong or missing."""
        try:
            return match(*args, **kwargs)
        except TypeError as error:
            parameters, what = self.signature.parameters, f": {error}."
            unknown = [name for name in kwargs if name not in parameters]
            if unknown and _find_rest(self.signature) is None:
                what = f" has no parameter {unknown[0]!r}.{did_you_mean(unknown[0], parameters)}"
            raise InvalidError(f"The step {self.__name__!r}{what} Its signature: {self}.") from None

    def _takes_list(self, name: str, value: Any) -> bool:
        """Return whether a parameter's annotation takes a list as a whole."""
        hint = _get_signature(self.function)[1].get(name, Any)
        try:
            validate_value([] if list_references(value) else value, hint, "")
        except InvalidError:
            return False
        return hint is not Any

    @cached_property
    def signature(self) -> inspect.Signature:
        return _read_signature(self.function)

    @cached_property
    def _matched(self) -> inspect.Signature:
        return _accept_by_name(self.signature)

    @cached_property
    def target(self) -> Target:
        return Target(_locate(self.function), self)

    def __str__(self) -> str:
        try:
            signature = inspect.signature(self.function, eval_str=True)
        except NameError:  # a name only imported under TYPE_CHECKING
            signature = self.signature
        return f"{self.__name__}{signature}"

    def _build_node(self, parameters: Mapping[str, Any]) -> Executor:
        name = self.fields.get("name") or build_slug(self.__name__)
        fields: dict[str, Any] = {**self.fields, "name": name}
        node = Executor(function=self.target, parameters=parameters, **fields)
        checked = check_parameters(self.function, node.parameters, who=f"Step {name!r}")
        for key, value in parameters.items():
            _check_kept(
                value, checked[key], key, who=f"Step {name!r}", hint=get_annotations(self.function).get(key, Any)
            )
        if isinstance(node.for_each, tuple):
            for given, kept in zip(fields["for_each"], node.for_each, strict=True):
                self._check_item(node, given, kept)
        return node

    def _check_item(self, node: Executor, given: Any, kept: Any) -> None:
        who, items = f"Step {node.name!r}", _pick_from_item(node, kept)
        checked = check_parameters(self.function, {**node.parameters, **items}, who=who)
        for key, value in _pick_from_item(node, given).items():
            hint = get_annotations(self.function).get(key, Any)
            _check_kept(value, checked[key], key, who=f"{who}, an item", hint=hint)

    def _collect_parameters(self, bound: inspect.BoundArguments) -> dict[str, Any]:
        parameters: dict[str, Any] = {}
        for name, value in bound.arguments.items():
            kind = self.signature.parameters[name].kind
            if kind is inspect.Parameter.VAR_POSITIONAL:
                raise InvalidError(f"The step {self.__name__!r} takes *{name}; give a step a list parameter instead.")
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


def check_parameters(
    function: Callable[..., Any], parameters: Mapping[str, Any], *, who: str, exact: Exact = False
) -> dict[str, Any]:
    """Return the parameters as their annotations mean them; references are not checked, and what is ``exact`` is not
    changed. InvalidError: one does not fit.
    """
    signature, hints = _get_signature(function)
    rest = _find_rest(signature)
    checked: dict[str, Any] = {}
    for name, value in parameters.items():
        if name not in signature.parameters and rest is None:
            raise InvalidError(f"{who} has no parameter {name!r}.{did_you_mean(name, signature.parameters)}")
        what, hint = (
            f"{who}: the parameter {name!r}",
            hints.get(name if name in signature.parameters else rest or name, Any),
        )
        mark = exact.get(name, False) if isinstance(exact, dict) else exact
        if mark is True:
            check_value(value, hint, what, secret=looks_secret(name))
        elif mark or not _is_known_later(value):
            value = restore_exact(value, validate_value(value, hint, what, secret=looks_secret(name)), mark)
        checked[name] = value
    for name, parameter in signature.parameters.items():
        plain = parameter.kind not in {inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL}
        if plain and parameter.default is inspect.Parameter.empty and name not in parameters:
            raise InvalidError(f"{who} needs the parameter {name!r}.")
    return checked


def _is_known_later(value: Any) -> bool:
    return bool(list_references(value)) or next(iterate_secrets(value), None) is not None


def check_node(node: Executor) -> None:
    """Check the parameters and items of a node by its function; InvalidError: one does not fit."""
    call = None if node.target is None else node.target.call
    if call is None:
        return
    who = f"Step {node.name!r}"
    check_parameters(call, node.parameters, who=who)
    for element in node.for_each if isinstance(node.for_each, tuple) else ():
        check_parameters(call, {**node.parameters, **_pick_from_item(node, element)}, who=who)


def _pick_from_item(node: Executor, element: Any) -> dict[str, Any]:
    """Return the parameters of a node that an item of its fan-out, as far as it is known, is or has as its parts."""
    if isinstance(element, Executor | Ref):
        return {}
    fed = {name: value for name, value in node.parameters.items() if isinstance(value, Ref) and value.step is None}
    try:
        return {name: element[ref.output] if ref.output else element for name, ref in fed.items()}
    except (KeyError, TypeError, IndexError):
        missing = next(ref.output for ref in fed.values() if ref.output)
        raise InvalidError(
            f"Step {node.name!r}: the item {element!r:.60} has no {missing!r}, which sf.item[{missing!r}] refers to."
        ) from None


def get_defaults(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the defaults of a function's parameters, as far as JSON can hold them."""
    defaults = {}
    for name, parameter in _get_signature(function)[0].parameters.items():
        if parameter.default is not inspect.Parameter.empty and _is_json(parameter.default):
            defaults[name] = parameter.default
    return defaults


def get_exact_defaults(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the defaults that a definition, which is JSON, gives to the function as they are, by their annotations."""
    exact = {}
    for name, value in get_defaults(function).items():
        with suppress(InvalidError):
            kept = validate_value(json.loads(json.dumps(value)), _get_signature(function)[1].get(name, Any), "")
            if find_difference(value, kept) is None:
                exact[name] = value
    return exact


def _check_kept(value: Any, kept: Any, name: str, *, who: str, hint: Any = Any) -> None:
    """Refuse a value that a definition, which is JSON, would change, and that the annotation does not restore.

    Raises:
        InvalidError: says what the step would get, and what to write.
    """
    if isinstance(value, Executor | Ref | Secret) or is_exact_json(value):
        return
    difference = _find_lost(value, kept, hint) if _is_known_later(kept) else find_difference(value, kept)
    if difference is None:
        return
    given, got = (type(part).__name__ for part in difference)
    has = f"is {with_article(given)}" if difference[0] is value else f"holds {with_article(given)}"
    annotate = ""
    with suppress(InvalidError):
        type_ = type(difference[0])
        if find_difference(difference[0], validate_value(difference[1], type_, "")) is None:
            named = "Path" if isinstance(difference[0], PurePath) else given
            annotate = f"Annotate the parameter with its type ({named}), give"
    raise InvalidError(
        f"{who}: {name!r} {has}, which a definition keeps as {with_article(got)}. {annotate or 'Give'} it "
        f"{with_article(got)}, or make that object in a step."
    )


def check_set_parameter(node: Executor, name: str, value: Any) -> None:
    """Refuse a value that was set for a parameter of a node, and that a definition would change, as ``bind`` does."""
    call = None if node.target is None else node.target.call
    if call is None or is_exact_json(value):
        return
    who = f"Step {node.name!r}"
    kept = check_parameters(call, node.parameters, who=who)[name]
    _check_kept(value, kept, name, who=who, hint=get_annotations(call).get(name, Any))


def _find_lost(value: Any, kept: Any, hint: Any) -> tuple[Any, Any] | None:
    """Return a part of a value beside references that a definition would change, and that its annotation does not
    restore, with what it would be; None: there is none, or the annotation is not looked into (a union, a model)."""
    if is_exact_json(value):
        return None
    if not _is_known_later(kept):
        with suppress(InvalidError):
            return find_difference(value, validate_value(kept, hint, ""))
        return None
    if isinstance(value, Executor | Ref | Secret):
        return None
    origin, arguments = get_origin(hint) or hint, get_args(hint)
    is_open = origin in {Any, object}
    if isinstance(value, dict):
        if type(value) is not dict:
            return (value, kept) if is_open or origin is dict else None
        if key := next(
            ((key, other) for key, other in zip(value, kept, strict=True) if type(key) is not type(other)), None
        ):
            return key if is_open or not arguments else None
        inner = arguments[1] if len(arguments) == 2 else Any
        pairs = [(value[key], kept[key], inner) for key in value]
    elif isinstance(value, list | tuple):
        is_tuple = type(value) is not list
        if is_tuple and (is_open or origin in {list, Sequence}):
            return value, kept
        if is_tuple and origin is not tuple:
            return None
        several = is_tuple and len(arguments) == len(value) and arguments[-1] is not Ellipsis
        inners = arguments if several else (arguments[0] if arguments else Any,) * len(value)
        pairs = list(zip(value, kept, inners, strict=True))
    else:
        return None
    known = is_open or origin in {dict, list, tuple, Sequence, Mapping}
    return next(filter(None, (_find_lost(*pair) for pair in pairs)), None) if known else None


def get_annotations(function: Callable[..., Any]) -> Mapping[str, Any]:
    """Return the annotations of a function's parameters, as far as their names are known here."""
    return _get_signature(function)[1]


def _is_json(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_json, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_json(inner) for key, inner in value.items())
    return value is None or isinstance(value, bool | int | float | str)


def check_result(function: Callable[..., Any], value: Any, *, who: str) -> Any:
    """Return what a function returned, as it is; InvalidError: it does not fit its annotation."""
    if isinstance(value, Generator):
        raise InvalidError(f"{who} returned a generator, which can be read once only. Return a list: list(...).")
    check_value(value, _get_signature(function)[1].get("return", Any), f"{who}: its result")
    return value


def call_function(function: Callable[..., R], parameters: Mapping[str, Any]) -> R:
    """Call a function with parameters by name, also those that it takes by position only."""
    positional, named = [], dict(parameters)
    for name, parameter in _get_signature(function)[0].parameters.items():
        if parameter.kind is not inspect.Parameter.POSITIONAL_ONLY or name not in named:
            break
        positional.append(named.pop(name))
    return function(*positional, **named)


def _get_signature(function: Callable[..., Any]) -> tuple[inspect.Signature, Mapping[str, Any]]:
    try:
        return _get_hashable_signature(function)
    except TypeError:  # a callable object that has no hash
        return _get_hashable_signature.__wrapped__(function)


@lru_cache(maxsize=256)
def _get_hashable_signature(function: Callable[..., Any]) -> tuple[inspect.Signature, Mapping[str, Any]]:
    whole = getattr(function, "function", function)
    plain = whole
    while isinstance(plain, partial):
        plain = plain.func
    plain = getattr(plain, "function", plain)
    if isinstance(plain, type):
        plain = getattr(plain, "__init__")  # noqa: B009  mypy takes the plain spelling for an instance's
    elif not inspect.isroutine(plain):
        plain = getattr(plain, "__call__", plain)  # noqa: B004
    try:
        hints = get_type_hints(plain, include_extras=True)
    except TypeError:  # written in C, or annotated by hand with what is no type
        hints = {}
    except NameError:  # a name only imported under TYPE_CHECKING: there is nothing to check that one against
        hints = {}
        for name, annotation in getattr(plain, "__annotations__", {}).items():
            with suppress(NameError):
                alone = SimpleNamespace(__annotations__={name: annotation})
                hints |= get_type_hints(alone, getattr(plain, "__globals__", {}), include_extras=True)
    if isinstance(whole, type) or hasattr(plain, "__wrapped__"):  # a decorator may return what it likes
        hints.pop("return", None)
    return _read_signature(whole), hints


def _find_rest(signature: inspect.Signature) -> str | None:
    """Return the parameter that takes all others by name (``**rest``); None: there is none."""
    kind = inspect.Parameter.VAR_KEYWORD
    return next((name for name, parameter in signature.parameters.items() if parameter.kind is kind), None)


def _accept_by_name(signature: inspect.Signature) -> inspect.Signature:
    """Return a signature that takes all parameters by name too, as a definition has them."""
    only, either = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = signature.parameters.values()
    return signature.replace(
        parameters=[parameter.replace(kind=either) if parameter.kind is only else parameter for parameter in parameters]
    )


def _read_signature(function: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except ValueError as error:
        raise InvalidError(
            f"The step {_get_name(function)!r} has no signature that Python knows. Write a function that calls it."
        ) from error


def _is_using_item(values: Sequence[Any]) -> bool:
    return any(ref.step is None for ref in list_references(list(values)))


def _locate(function: Callable[..., Any]) -> str:
    """Name a function by its file, or by its module inside a package, whose imports need the name.

    What a program or notebook defines itself stays ``__main__:name``: finding it in its file would run that again.
    """
    module, name = _get_module(function), getattr(function, "__qualname__", _get_name(function))
    file = getattr(sys.modules.get(module), "__file__", None)
    if module == "__main__" or "." in module:
        return f"{module}:{name}"
    return f"{Path(file).name if file and file.endswith('.py') else module}:{name}"


def is_found_by_name(function: Callable[..., Any]) -> bool:
    """Return whether importing a function's module, and following its qualified name, gives this function.

    It does not for what the running program or notebook defines, for lambdas, closures, methods of an object, partials,
    callable objects, and functions whose name was defined again since.
    """
    module, name = sys.modules.get(_get_module(function)), getattr(function, "__qualname__", None)
    if module is None or module.__name__ == "__main__" or name is None:
        return False
    value: Any = module
    for part in name.split("."):
        value = getattr(value, part, None)
    return getattr(value, "function", value) is function


def _get_module(function: Callable[..., Any]) -> str:
    """Return the name of the module of a function, or of what it calls or belongs to."""
    inner = getattr(function, "func", None) or getattr(function, "__self__", None)
    module = getattr(function, "__module__", None)
    if module is None or (isinstance(function, partial) and inner is not None):
        module = _get_module(inner) if callable(inner) else getattr(type(inner or function), "__module__", None)
    return str(module or type(function).__module__)


def _get_name(function: Any) -> str:
    if isinstance(function, partial):
        return _get_name(function.func)
    return str(getattr(function, "__name__", type(function).__name__))
