"""What a function does, with all that it uses of its author's own code."""

from __future__ import annotations

import random
import subprocess
import sys
from typing import Any

import pytest

from scanflow.backends.used_code import digest_call

PROGRAM = '''
import collections, dataclasses, datetime, enum, functools, re, threading
import numpy as np
import pandas as pd
import pydantic

RATE = 1
MANY = list(range(20_000))
KINDS = {"a", "b", "c"}
TABLE = {"x": [1, (2, b"3")]}
WEIGHTS = np.array([1.0, 2.0])
FRAME = pd.DataFrame({"c": [1, 2]})
DAY = datetime.date(2020, 1, 1)
SIGN = re.compile("a+")
LOCK = threading.Lock()
LONG = "x" * 5000

class Colour(enum.Enum):
    RED = 1

class Base:
    factor = 4

class Model(Base):
    """A model."""
    def __init__(self, power=2):
        self.power = power
    @property
    def twice(self): return 2 * self.power
    @classmethod
    def make(cls): return cls(5)
    @staticmethod
    def half(x): return x / 2

@dataclasses.dataclass
class Options:
    depth: int = 3
    names: list = dataclasses.field(default_factory=lambda: ["n"])

class Config(pydantic.BaseModel):
    size: int = pydantic.Field(default=6, le=9)

class Slots:
    __slots__ = ("side",)

Pair = collections.namedtuple("Pair", "left right")
MODEL, PAIR, SLOTS = Model(7), Pair(8, 9), Slots()
SLOTS.side = 10

def scale(by):
    def decorate(function):
        @functools.wraps(function)
        def inner(*args):
            return by * function(*args)
        return inner
    return decorate

@functools.lru_cache(maxsize=None)
def kept(x): return x + 11

def helper(x): return again(x) + 12

def again(x): return helper(x - 1) if x > 0 else 13

def closed(power):
    return lambda x: x ** power

CLOSED, PART = closed(14), functools.partial(helper, 15)

@scale(16)
def f(x=0, kind=Colour.RED):
    def nested(): return RATE
    uses = MANY, KINDS, TABLE, WEIGHTS, FRAME, DAY, SIGN, LOCK, LONG, MODEL, PAIR, SLOTS, CLOSED, PART
    return helper(x), kept(x), Model.make(), Options(), Config(), uses, nested()
'''


def digest(code: str) -> str:
    namespace: dict[str, Any] = {"__name__": "an_app_of_ones_own"}
    exec(compile(code, "app.py", "exec", dont_inherit=True), namespace)
    return digest_call(namespace["f"])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("RATE = 1", "RATE = 2"),
        ("MANY = list(range(20_000))", "MANY = list(range(20_001))"),
        ("RATE = 1", "RATE = 1.0"),
        ('"a", "b"', '"a", "d"'),
        ('b"3"', 'b"4"'),
        ("[1.0, 2.0]", "[1.0, 3.0]"),
        ('"c": [1, 2]', '"c": [1, 3]'),
        ("date(2020, 1, 1)", "date(2020, 1, 2)"),
        ('"a+"', '"a*"'),
        ('"x" * 5000', '"x" * 4999 + "y"'),
        ("RED = 1", "RED = 2"),
        ("factor = 4", "factor = 5"),
        ("power=2", "power=3"),
        ("2 * self.power", "3 * self.power"),
        ("cls(5)", "cls(6)"),
        ("x / 2", "x / 3"),
        ("depth: int = 3", "depth: int = 4"),
        ('["n"]', '["m"]'),
        ("default=6", "default=7"),
        ("le=9", "le=8"),
        ("Model(7)", "Model(8)"),
        ("Pair(8, 9)", "Pair(8, 10)"),
        ("side = 10", "side = 11"),
        ("by * function", "by + function"),
        ("@scale(16)", "@scale(17)"),
        ("@scale(16)\n", ""),
        ("x + 11", "x + 12"),
        ("again(x) + 12", "again(x) + 13"),
        ("else 13", "else 14"),
        ("x ** power", "x * power"),
        ("closed(14)", "closed(15)"),
        ("partial(helper, 15)", "partial(helper, 16)"),
        ("x=0", "x=1"),
        ("x=0", "x: int = 0"),
        ("kind=Colour.RED", "kind=1"),
    ],
)
def test_what_a_function_uses_counts(before: str, after: str) -> None:
    assert before in PROGRAM
    assert digest(PROGRAM.replace(before, after)) != digest(PROGRAM)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("class Base:", "# a comment\n\nclass Base:"),
        ('    """A model."""\n', ""),
        ("RATE = 1\n", "OTHER = 5\nRATE = 1\n"),
        ('{"a", "b", "c"}', '{"c", "b", "a"}'),
        ("LOCK = threading.Lock()", "LOCK = threading.Lock(); LOCK.acquire()"),
        ("def helper(x): return", "def unused(): return 3\n\ndef helper(x):\n    return"),
    ],
)
def test_how_it_is_written_does_not_count(before: str, after: str) -> None:
    assert before in PROGRAM
    assert digest(PROGRAM.replace(before, after)) == digest(PROGRAM)


def test_a_digest_is_the_same_in_every_process() -> None:
    code = f"from scanflow.backends.used_code import digest_call\n{PROGRAM}\nprint(digest_call(f))"
    # The program's own module has another name there, as what a notebook defines has.
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1


def test_what_has_no_equal_does_not_count() -> None:
    def draw(generator: random.Random) -> Any:
        return lambda: [generator.random()]

    assert digest_call(draw(random.Random(1))) == digest_call(draw(random.Random(2)))


def test_a_library_counts_by_its_name() -> None:
    import json
    import pickle

    def use(module: Any) -> Any:
        return lambda value: module.dumps([value])

    assert digest_call(use(json)) == digest_call(use(json)) != digest_call(use(pickle))


@pytest.mark.parametrize("make", [lambda: [1, [...]], lambda: {"a": 1}, lambda: {1.5: None}])
def test_values_that_hold_themselves_have_a_digest(make: Any) -> None:
    value = make()
    if isinstance(value, list):
        value.append(value)
    assert digest_call(lambda: value) == digest_call(lambda: value)


def test_an_object_that_raises_when_it_is_looked_at_counts_by_its_class() -> None:
    class Broken:
        def __reduce_ex__(self, protocol: Any) -> Any:
            raise RuntimeError("no")

        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = None  # type: ignore[assignment]

    broken = Broken()
    assert digest_call(lambda: broken) == digest_call(lambda: broken)
