"""Values known only at run time: an earlier step's output, the current item of a fan-out, a condition on either."""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, NoReturn, Self

from pydantic import BeforeValidator, GetJsonSchemaHandler, model_serializer, model_validator
from pydantic_core import CoreSchema

from scanflow.app.edges import Linkable
from scanflow.app.model import Model, describe_key, shorten
from scanflow.app.parameters import is_exact_json, to_plain
from scanflow.errors import InvalidError

RESULT = "result"
_REFERENCE_KEY = "$from"
_REF = re.compile(r"(?P<step>[a-z0-9][-a-z0-9]*)\.(?P<output>.+)", re.DOTALL)
_CONDITION = re.compile(r"\s*(?P<left>\S+?)\s*(?P<op>==|!=|<=|>=|<|>|\bin\b)\s*(?P<right>.+?)\s*")

_OPERATORS: Mapping[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "in": lambda value, values: value in values,
}


class Ref(Model):
    """A value that an earlier step produces, or the current item of a fan-out.

    In files: ``{"$from": "train.accuracy"}`` is a named output of ``train``, or that key of what its function returned;
    ``{"$from": "item"}`` is the current item.
    """

    step: str | None
    """The step that produces it; None for the current item of a fan-out."""

    output: str = RESULT
    """The output's name; ``result`` is what a step function returns."""

    @model_validator(mode="before")
    @classmethod
    def _read(cls, data: Any) -> Any:
        if not (isinstance(data, Mapping) and set(data) == {_REFERENCE_KEY}):
            return data
        ref = _parse_reference(data[_REFERENCE_KEY])
        return {"step": ref.step, "output": ref.output}

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.step is not None and not self.output:
            raise InvalidError(
                f"The reference to {self.step!r} names no output. Write node['accuracy'], or node.output."
            )
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, *_: Any) -> dict[str, Any]:
        """Return the schema of a reference in a file."""
        return describe_key(cls.__name__, _REFERENCE_KEY, "train.accuracy")

    @model_serializer
    def _write(self) -> dict[str, str]:
        return {_REFERENCE_KEY: str(self)}

    def __str__(self) -> str:
        if self.step is None:
            return f"item.{self.output}" if self.output else "item"
        return f"{self.step}.{self.output}"

    def __bool__(self) -> bool:
        raise InvalidError(
            f"The value of {str(self)!r} is known only at run time, so it cannot be used in an 'if', 'and' or 'or'. "
            "Give the step a condition: when=node[...].equals(True)."
        )

    def __iter__(self) -> NoReturn:
        raise InvalidError(
            f"The value of {str(self)!r} is known only at run time, so it cannot be iterated over here. Run a step for "
            "each of its items: for_each=..."
        )

    def __format__(self, spec: str) -> str:
        raise InvalidError(
            f"The value of {str(self)!r} is known only at run time, so it cannot be formatted into a string. Pass it "
            "as a separate parameter."
        )

    def __getitem__(self, key: str) -> Ref:
        if self.step is None and not self.output:
            return Ref(step=None, output=key)
        raise InvalidError(
            f"The reference {str(self)!r} has no keys of its own. Give all of it to the step, which takes {key!r} from "
            "it, or return that under a key of its own."
        )

    def __lt__(self, other: object) -> Condition:
        return Condition(left=self, op="<", right=other)

    def __le__(self, other: object) -> Condition:
        return Condition(left=self, op="<=", right=other)

    def __gt__(self, other: object) -> Condition:
        return Condition(left=self, op=">", right=other)

    def __ge__(self, other: object) -> Condition:
        return Condition(left=self, op=">=", right=other)

    def equals(self, other: object) -> Condition:
        """Return the condition that this value is ``other`` (``==`` itself compares references)."""
        return Condition(left=self, op="==", right=other)

    def differs(self, other: object) -> Condition:
        """Return the condition that this value differs from ``other``."""
        return Condition(left=self, op="!=", right=other)

    def is_in(self, others: Sequence[object]) -> Condition:
        """Return the condition that this value is one of ``others``."""
        if isinstance(others, str):
            raise InvalidError(
                f"is_in needs a list of choices, not the text {others!r}. Write a list: is_in([{others!r}])."
            )
        return Condition(left=self, op="in", right=list(others))


item = Ref(step=None, output="")
"""The current item of a fan-out (``for_each``)."""


def _parse_condition(text: str) -> dict[str, Any]:
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise InvalidError(f"The condition {text!r} cannot be read. Write it as 'check.accuracy >= 0.9'.")
    try:
        right = json.loads(match["right"])
    except (json.JSONDecodeError, RecursionError):
        raise InvalidError(
            f"The condition {shorten(text)} compares with {shorten(match['right'])}, which is not JSON. "
            f"Write text in double quotes, as in 'check.verdict == \"good\"'."
        ) from None
    return {"left": {_REFERENCE_KEY: match["left"]}, "op": match["op"], "right": right}


def _check_operand(value: Any) -> Any:
    if isinstance(value, Ref | Linkable):
        other = str(value) if isinstance(value, Ref) else value.name
        raise InvalidError(
            f"A condition compares with a plain value, and {other!r} is known only at run time. Compare the two in a "
            "step that returns True or False."
        )
    plain = to_plain(value, "the value that a condition compares with")
    if not is_exact_json(value):
        raise InvalidError(
            f"A condition compares with JSON, which keeps {shorten(value)} as {shorten(plain)}: another value. Compare "
            "the two in a step that returns True or False."
        )
    return plain


class Condition(Model):
    """A test on an earlier step's output, written ``check.accuracy >= 0.9`` in files.

    A step whose condition is false is skipped, and so is one that depends only on skipped steps; one that also depends
    on a step that ran gets None for the outputs of the skipped ones.
    """

    left: Ref
    """The value that is tested."""

    op: Literal["==", "!=", "<", "<=", ">", ">=", "in"]
    """The comparison. ``in``: whether the value is one of a list."""

    right: Annotated[Any, BeforeValidator(_check_operand)]
    """What it is compared with: a plain value, a list for ``in``, or a reference to another value."""

    @model_validator(mode="before")
    @classmethod
    def _read(cls, data: Any) -> Any:
        return _parse_condition(data) if isinstance(data, str) else data

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.op == "in" and not isinstance(self.right, list):
            raise InvalidError(
                f"The condition '{self}' tests membership in {self.right!r}, which is not a list. Write a list: [...]."
            )
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Return the schema of a condition in a file, where it is mostly text."""
        return {"anyOf": [{"type": "string", "examples": ["check.accuracy >= 0.9"]}, handler(schema)]}

    @model_serializer
    def _write(self) -> str | dict[str, Any]:
        text = str(self)
        try:
            if Condition(**_parse_condition(text)) == self:
                return text
        except InvalidError:
            pass
        # An output whose name has spaces or signs in it.
        return {"left": {_REFERENCE_KEY: str(self.left)}, "op": self.op, "right": self.right}

    def __str__(self) -> str:
        return f"{self.left!s} {self.op} {json.dumps(self.right)}"

    def __bool__(self) -> bool:
        raise InvalidError(
            f"The condition '{self}' is known only at run time, so it cannot be used in an 'if', 'and' or 'or'. "
            "Give it to a step: when=..."
        )

    def holds(self, value: object) -> bool:
        """Return whether the condition holds for ``value``; InvalidError: not comparable (text with a number)."""
        try:
            return bool(_OPERATORS[self.op](value, self.right))
        except (TypeError, ValueError) as error:  # an array has no truth value
            raise InvalidError(
                f"The condition '{self}' cannot be tested: {str(self.left)!r} is {value!r} ({error})."
            ) from error

    def holds_if_skipped(self) -> bool:
        """Return whether the condition holds where the step was skipped, whose outputs are None.

        A comparison that None cannot take part in does not hold.
        """
        try:
            return self.holds(None)
        except InvalidError:
            return False


def read_reference(value: Any) -> Ref | None:
    """Convert ``{"$from": ...}`` to a reference; return references unchanged, None for anything else."""
    if isinstance(value, Mapping) and set(value) == {_REFERENCE_KEY}:
        return _parse_reference(value[_REFERENCE_KEY])
    return value if isinstance(value, Ref) else None


def read_condition(value: Any) -> Any:
    if isinstance(value, Ref):
        raise InvalidError(
            f"'when' needs a condition, but {str(value)!r} is a value. Write when=node[...].equals(True)."
        )
    if isinstance(value, bool):
        raise InvalidError(
            f"'when' cannot be {value!r}: '==' compares references, not their values. Write when=node[...].equals(1)."
        )
    return value


def _parse_reference(text: Any) -> Ref:
    if text == "item":
        return Ref(step=None, output="")
    match = _REF.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise InvalidError(
            f"The reference {shorten(text)} cannot be read. Write 'step.output', 'step.result' or 'item'."
        )
    return Ref(step=None if match["step"] == "item" else match["step"], output=match["output"])


def list_references(value: Any) -> list[Ref]:
    """Return the references inside ``value``, at any depth, in their order."""
    if isinstance(value, Ref):
        return [value]
    if isinstance(value, Condition):
        return [value.left]
    if isinstance(value, Mapping):
        return [ref for inner in value.values() for ref in list_references(inner)]
    if isinstance(value, list | tuple):
        return [ref for inner in value for ref in list_references(inner)]
    return []
