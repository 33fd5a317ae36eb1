"""Values known only at run time: an earlier step's output, the current item of a fan-out, a condition on either."""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Self

from pydantic import model_serializer, model_validator

from scanflow.app.model import Model
from scanflow.errors import InvalidError

__all__ = ["Condition", "Ref", "item", "read_references", "references_in"]

RESULT = "result"
_FROM = "$from"
_REF = re.compile(r"(?P<step>[a-z0-9][-a-z0-9]*)\.(?P<output>.+)")
_CONDITION = re.compile(r"\s*(?P<left>\S+?)\s*(?P<op>==|!=|<=|>=|<|>|\bin\b)\s*(?P<right>.+?)\s*")

_OPERATORS: Mapping[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "in": lambda left, right: left in right,
}


class Ref(Model):
    """A value that a step will have produced by the time it is needed.

    Written ``{"$from": "train.accuracy"}`` in files: a named output of ``train``, or the key ``accuracy`` of what its
    function returned; ``{"$from": "item"}`` is the current item of a fan-out.
    """

    step: str | None
    """The step that produces it; None for the current item of a fan-out."""

    output: str = RESULT
    """The output's name; ``result`` is what a step function returns."""

    @model_validator(mode="before")
    @classmethod
    def _read(cls, data: Any) -> Any:
        if not (isinstance(data, Mapping) and set(data) == {_FROM}):
            return data
        text = str(data[_FROM])
        if text == "item":
            return {"step": None, "output": ""}
        if text.startswith("item."):
            return {"step": None, "output": text.removeprefix("item.")}
        match = _REF.fullmatch(text)
        if match is None:
            raise InvalidError(f"The reference {text!r} cannot be read. Write 'step.output', 'step.result' or 'item'.")
        return match.groupdict()

    @model_serializer
    def _write(self) -> dict[str, str]:
        return {_FROM: str(self)}

    def __str__(self) -> str:
        if self.step is None:
            return f"item.{self.output}" if self.output else "item"
        return f"{self.step}.{self.output}"

    def __getitem__(self, key: str) -> Ref:
        """Return a reference to one key of the current item: ``sf.item["seed"]``."""
        if self.step is None and not self.output:
            return Ref(step=None, output=key)
        raise InvalidError(f"The reference {str(self)!r} has no keys of its own. Write node[{key!r}] instead.")

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
        """Return the condition that this value is not ``other``."""
        return Condition(left=self, op="!=", right=other)

    def is_in(self, others: Sequence[object]) -> Condition:
        """Return the condition that this value is one of ``others``."""
        return Condition(left=self, op="in", right=list(others))


item = Ref(step=None, output="")
"""The current item of a fan-out (``for_each``)."""


class Condition(Model):
    """A test on an earlier step's output, written ``check.accuracy >= 0.9`` in files.

    A step whose condition is false is skipped. A step that depends only on skipped steps is skipped too; one that also
    depends on a step that ran gets None for the outputs of the skipped ones.
    """

    left: Ref
    op: Literal["==", "!=", "<", "<=", ">", ">=", "in"]
    right: Any

    @model_validator(mode="before")
    @classmethod
    def _read(cls, data: Any) -> Any:
        if not isinstance(data, str):
            return data
        match = _CONDITION.fullmatch(data)
        if match is None:
            raise InvalidError(f"The condition {data!r} cannot be read. Write it as 'check.accuracy >= 0.9'.")
        try:
            right = json.loads(match["right"])
        except json.JSONDecodeError:
            raise InvalidError(
                f"The condition {data!r} compares with {match['right']!r}, which is not JSON. "
                f"Write text in double quotes, as in 'check.verdict == \"good\"'."
            ) from None
        return {"left": {_FROM: match["left"]}, "op": match["op"], "right": right}

    @model_validator(mode="after")
    def _check(self) -> Self:
        try:
            json.dumps(self.right)
        except (TypeError, ValueError) as error:
            raise InvalidError(f"A condition compares with a plain value; {self.right!r} is not one ({error}).") from error
        return self

    @model_serializer
    def _write(self) -> str:
        return str(self)

    def __str__(self) -> str:
        return f"{self.left} {self.op} {json.dumps(self.right)}"

    def __bool__(self) -> bool:
        raise InvalidError(
            f"The condition '{self}' is known only at run time, so it cannot be used in an 'if', 'and' or 'or'. "
            "Give it to a step: when=..."
        )

    def holds(self, value: object) -> bool:
        """Say whether the condition is true of ``value``, the left side's value at run time.

        Raises:
            InvalidError: the two cannot be compared (text with a number).
        """
        try:
            return bool(_OPERATORS[self.op](value, self.right))
        except TypeError as error:
            raise InvalidError(
                f"The condition '{self}' cannot be tested: {str(self.left)!r} turned out to be {value!r} ({error})."
            ) from error


def read_references(value: Any) -> Any:
    """Return ``value`` with every ``{"$from": ...}`` inside it, at any depth, turned into a :class:`Ref`."""
    if isinstance(value, Mapping):
        if set(value) == {_FROM}:
            return Ref.model_validate(value)
        return {key: read_references(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [read_references(inner) for inner in value]
    return value


def references_in(value: Any) -> list[Ref]:
    """Return the references inside ``value``, at any depth, in the order they stand."""
    if isinstance(value, Ref):
        return [value]
    if isinstance(value, Condition):
        return [value.left]
    if isinstance(value, Mapping):
        return [ref for inner in value.values() for ref in references_in(inner)]
    if isinstance(value, list | tuple):
        return [ref for inner in value for ref in references_in(inner)]
    return []
