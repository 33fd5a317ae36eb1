"""Functions of the programs that the law of workflows makes: light to import, since steps' processes do."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import functools
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Optional, TypedDict, TypeVar, Union
from zoneinfo import ZoneInfo

import numpy as np
import typing_extensions
from pydantic import BaseModel

T = TypeVar("T")


class Color(enum.StrEnum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Point(NamedTuple):
    x: int
    y: float


@dataclasses.dataclass
class Box:
    inner: Any
    size: int = 1


@dataclasses.dataclass(frozen=True, order=True)
class Label:
    name: str


class Row(TypedDict):
    id: int


class OtherRow(typing_extensions.TypedDict):
    id: int


class Config(BaseModel):
    rate: float = 0.1
    layers: list[int] = []


class Own:
    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Own) and other.value == self.value

    def __hash__(self) -> int:
        return 7

    def __repr__(self) -> str:
        return f"Own({self.value!r})"

    def hold(self, value: Any) -> list[Any]:
        return [self.value, value]

    def __call__(self, value: Any) -> tuple[Any, Any]:
        return self.value, value

    @staticmethod
    def wrap(value: Any) -> Own:
        return Own(value)

    @classmethod
    def make(cls, value: Any) -> Own:
        return cls([value])


VALUES: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    2**70,
    1.5,
    -0.0,
    float("inf"),
    "",
    "text",
    "\N{ROCKET}\n\x00\ud7ff",
    "{{workflow.name}}",
    "$path",
    b"bytes",
    bytearray(b"x"),
    1j,
    (),
    (1, 2),
    [1, (2, [3])],
    {"a": 1},
    {"a": (1,)},
    {1: "int key"},
    {(1, 2): 3},
    {"$path": "x"},
    {"$pickle": ".0.pickle"},
    {"$value": {"$path": "y"}},
    {"$from": "x"},
    {1, 2},
    frozenset([1, 2]),
    Color.RED,
    Level.HIGH,
    [Color.BLUE],
    {"level": Level.LOW},
    Point(1, 2.0),
    Counter("aab"),
    OrderedDict(b=1, a=2),
    defaultdict(list, k=[1]),
    deque([1, 2], maxlen=3),
    range(3),
    slice(1, 2),
    Decimal("1.10"),
    Fraction(1, 3),
    dt.date(2024, 2, 29),
    dt.datetime(2024, 1, 1, tzinfo=ZoneInfo("Asia/Tokyo")),
    dt.timedelta(1),
    dt.time(1, 2),
    Path("relative/file.txt"),
    Path("/absolute/file"),
    np.float32(1.5),
    np.float64(0.1),
    np.int64(3),
    np.bool_(True),
    np.str_("np"),
    np.datetime64("2024-01-01"),
    np.datetime64("2024-01-01", "ns"),
    np.timedelta64(3, "D"),
    np.arange(6).reshape(2, 3),
    np.array(["a", "b"]),
    np.array(1.5),
    Box([1, (2,)]),
    Box(Path("p")),
    Label("l"),
    Config(rate=1),
    Own([1]),
    {"row": Row(id=1)},
    [],
    {},
    [[]],
    Ellipsis,
    int,
    len,
)
"""What people's steps return."""


def keep(x: Any) -> Any:
    return x


def pair(x: Any, y: Any) -> tuple[Any, Any]:
    return x, y


def list_values(x: T, y: T) -> list[T]:
    return [x, y]


def map_values(x, y=None, *, z: Any = 3):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201  as people write them
    return {"x": x, "y": y, "z": z}


def change(x: Any) -> Any:
    """Change the argument in place, as a sort or a scaling does."""
    if isinstance(x, list):
        x.append("changed")
    elif isinstance(x, dict):
        x["changed"] = True
    elif isinstance(x, np.ndarray) and x.dtype.kind in "if" and x.ndim:
        x += 1
    elif isinstance(x, Box):
        x.size += 1
    return x


def first(x: Any, /) -> Any:
    return x


def options(**values: Any) -> dict[str, Any]:
    return dict(values)


def twice(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*arguments: Any, **named_arguments: Any) -> list[Any]:
        return [function(*arguments, **named_arguments), function(*arguments, **named_arguments)]

    return call


@twice
def name_class(x: Any) -> str:
    return type(x).__name__


def again(x: Any) -> str:  # pyright: ignore[reportRedeclaration]
    return f"first {type(x).__name__}"


again_as_it_was = again


def again(x: Any) -> str:  # type: ignore[no-redef]
    return f"second {type(x).__name__}"


def make_closure(k: Any) -> Callable[[Any], Any]:
    held = [k]

    def add(x: Any) -> tuple[Any, Any]:
        return held[0], x

    return add


def make_counter() -> Callable[[Any], int]:
    def count(x: Any) -> int:
        return len(repr(x))

    return count


shout = lambda x: f"{type(x).__name__}!"  # noqa: E731
whisper = lambda x: f"{type(x).__name__}..."  # noqa: E731


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "keep": keep,
    "change": change,
    "first": first,
    "decorated": name_class,
    "again": again,
    "again before": again_as_it_was,
    "closure of 1": make_closure(1),
    "closure of a list": make_closure([1, (2,)]),
    "counter": make_counter(),
    "lambda": shout,
    "another lambda": whisper,
    "partial": functools.partial(pair, "p"),
    "partial by name": functools.partial(map_values, z=(4,)),
    "object": Own("called"),
    "method": Own("bound").hold,
    "static": Own.wrap,
    "class method": Own.make,
    "class": Own,
    "builtin": repr,
    "wrapped": twice(shout),
    "partial of a closure": functools.partial(make_closure({"k": 1})),
    "dataclass": Box,
}
"""Of one argument."""


def mean(xs: Iterable[float]) -> float:
    return sum(1 for _ in xs) + 100 * sum(1 for _ in xs)


def name_type(day: dt.date) -> str:
    return type(day).__name__


def name_types(days: list[dt.date]) -> list[str]:
    return list(map(name_type, days))


def name_types_by_key(days: dict[str, dt.date]) -> dict[str, str]:
    return {key: name_type(day) for key, day in days.items()}


class Stay(NamedTuple):
    arrival: dt.date
    departure: dt.date


def name_point(stay: Stay) -> str:
    return repr(stay)


def make_annotated() -> dict[str, tuple[Callable[..., Any], Any]]:
    """Return functions that check their argument by an annotation, each with a value that fits it."""
    types: dict[str, tuple[Any, Any]] = {
        "int": (int, True),
        "float": (float, 1),
        "large number as float": (float, 2**53 + 1),
        "union with a bare type": (dict[Any, Any] | Box, {"inner": 1}),
        "union of lists": (list[Config] | list[dict[str, Any]], [{"rate": 1}]),
        "keys of an enum": (dict[Color, int], {Color.RED: 1}),
        "np as float": (float, np.float32(1.5)),
        "str": (str, Color.RED),
        "enum": (Color, Color.RED),
        "optional": (Optional[int], None),  # noqa: UP045  as people write them
        "union": (Union[int, str], "1"),  # noqa: UP007
        "new union": (int | str, "1"),
        "literal": (Literal["a", 1], 1),
        "annotated": (Annotated[int, "note"], 3),
        "list": (list[int], [1, True]),
        "bare list": (list, [1, (2,)]),
        "tuple": (tuple[int, str], (1, "a")),
        "any tuple": (tuple[int, ...], (1, 2)),
        "sequence": (Sequence[int], (1, 2)),
        "mapping": (Mapping[str, Any], OrderedDict(a=(1,))),
        "dict": (dict[str, list[int]], {"a": [1]}),
        "set": (set[int], {1, 2}),
        "iterable": (Iterable[float], [1.0, 2.0]),
        "iterator": (Iterator[int], [1, 2]),
        "nested iterable": (dict[str, Iterable[int]], {"a": [1]}),
        "any": (Any, (1,)),
        "object": (object, (1,)),
        "dataclass": (Box, Box(1)),
        "model": (Config, Config(rate=1)),
        "path": (Path, Path("x")),
        "typed dict": (Row, {"id": 1, "more": 2}),
        "other typed dict": (OtherRow, {"id": True, "more": 2}),
        "array": (np.ndarray, np.arange(3)),
        "date": (dt.date, dt.datetime(2024, 1, 1, 3, tzinfo=dt.UTC)),
        "own": (Own, Own(1)),
        "callable": (Callable[[int], int], abs),
        "type": (type[int], bool),
        "none": (None, None),
        "T": (T, (1,)),
        "point": (Point, Point(1, 2.0)),
        "counter": (Counter[str], Counter("ab")),
        "bytes": (bytes, b"x"),
        "decimal": (Decimal, Decimal("1.0")),
        # What an annotation makes of a constant, but not of what a step returned.
        "text as a number": (int, "5"),
        "text as a date": (dt.date, "2024-01-01"),
        "text as a path": (Path, "x/y"),
        "text as an enum": (Color, "red"),
        "a list as a set": (set[int], [2, 1, 1]),
        "a list as a tuple": (tuple[int, ...], [1, 2]),
        "a mapping as a model": (Config, {"rate": 1}),
        "a mapping as a dataclass": (Box, {"inner": 1}),
        "texts as dates": (dict[str, list[dt.date]], {"a": ["2024-01-01"]}),
    }

    def annotate(annotation: Any) -> Callable[..., Any]:
        def check(x: Any) -> Any:
            return [x]

        check.__annotations__ = {"x": annotation, "return": list[annotation] if annotation is not None else list}
        return check

    return {name: (annotate(annotation), value) for name, (annotation, value) in types.items()}


ANNOTATED = make_annotated()


def is_same(value: Any, other: Any) -> bool:
    """Return whether two values are equal and of one type, at any depth."""
    if type(value) is not type(other):
        return False
    if isinstance(value, np.ndarray):
        return value.dtype == other.dtype and bool(np.array_equal(value, other))
    if isinstance(value, dict):
        keys, others = list(value), list(other)
        return (
            keys == others and all(map(is_same, keys, others)) and all(is_same(value[key], other[key]) for key in keys)
        )
    if isinstance(value, list | tuple | deque):
        return len(value) == len(other) and all(map(is_same, value, other))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return is_same(vars(value), vars(other))
    if isinstance(value, Own):
        return is_same(value.value, other.value)
    return bool(value == other) and repr(value) == repr(other)
