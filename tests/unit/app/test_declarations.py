"""Functions as their source declares them: their parameters are known, and none of their code is run."""

from __future__ import annotations

import datetime as dt
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import pytest

from scanflow.app.declarations import list_module_names, read_declaration
from scanflow.app.steps import check_parameters, get_annotations, get_defaults
from scanflow.errors import InvalidError

SOURCE = """
from __future__ import annotations
import sys
from datetime import date
from pathlib import Path
from typing import Literal, Optional
import scanflow as sf
from mine import Table, tuple

sys.exit("it was run")

@sf.step(retries=2)
def work(
    secs: float, fail: bool = False, name: "str | None" = None, mode: Literal["fast", "slow"] = "fast",
    path: Path = Path("x"), table: Table = None, rows: list[int] = (), pair: tuple[int, int] = (1, 2),
    odd: list["sys.exit()"] = (), day: date = None, *, depth: Optional[int] = 3, **rest: int,
) -> float:
    return secs

@sf.step
def load(rows): work = 1

def count(n: int, /, *more: str): ...

@cached
def replaced(n: int): ...

def wrapped(n: int): ...
wrapped = sf.step(wrapped)
"""


def declare(name: str) -> Any:
    declared = read_declaration(SOURCE, name)
    assert declared is not None
    return declared


def test_a_function_is_known_by_its_text() -> None:
    work = declare("work")
    assert get_annotations(work) == {
        "secs": float,
        "fail": bool,
        "name": str | None,
        "mode": Literal["fast", "slow"],
        "path": Path,
        "rows": list[int],
        "day": dt.date,
        "depth": int | None,
        "rest": int,
    }
    assert get_defaults(work).items() >= {"fail": False, "name": None, "mode": "fast", "depth": 3}.items()
    parameters = {"secs": 1, "table": 5, "pair": "x", "odd": [1], "path": "a/b", "name": None, "more": 4}
    assert check_parameters(work, parameters, who="it") == {**parameters, "path": Path("a/b")}
    assert check_parameters(declare("load"), {"rows": "any"}, who="it") == {"rows": "any"}
    assert check_parameters(declare("count"), {"n": 1}, who="it") == {"n": 1}


@pytest.mark.parametrize(
    ("parameters", "problem"),
    [
        ({"secs": "abc"}, "it: the parameter 'secs' is 'abc', which is not float"),
        ({"secs": 1, "fail": "maybe"}, "'fail' is 'maybe', which is not bool"),
        ({"secs": 1, "mode": "late"}, "'mode' is 'late', which is not"),
        ({"secs": 1, "rows": ["a"]}, "which is not list"),
        ({"secs": 1, "more": "a"}, "'more' is 'a', which is not int"),
        ({}, "it needs the parameter 'secs'"),
    ],
)
def test_what_does_not_fit_is_refused_as_by_the_function_itself(parameters: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidError) as refused:
        check_parameters(declare("work"), parameters, who="it")
    assert problem in str(refused.value)


@pytest.mark.parametrize("name", ["replaced", "wrapped", "none", "date", "Table.read"])
def test_what_the_text_does_not_say_is_not_known(name: str) -> None:
    assert read_declaration(SOURCE, name) is None
    assert read_declaration("def (", name) is None


@pytest.mark.parametrize(
    ("source", "is_known"),
    [
        ("class Model: ...", True),
        ("try:\n    import nowhere\n    class Model: ...\nexcept ImportError:\n    class Model: ...", True),
        ("class Base: ...\nModel = Base", True),
        ("from types import SimpleNamespace as Model", True),
        ("import types\nMade, Model = types.SimpleNamespace, dict", True),
        ("if (Model := dict): pass", True),
        ("class Other:\n    class Model: ...\nModel = Other.Model", True),
        ("from collections import *\nglobals()['Model'] = deque", False),
        ("exec('class Model: ...')", False),
        ("def make():\n    global Model\n    Model = dict\nmake()", False),
        ("import sys\nsys.modules[__name__].Model = dict", False),
        ("match [dict]:\n    case [Model]: pass", False),
        ("def __getattr__(name): return dict", False),
    ],
)
def test_no_name_that_a_module_binds_is_missed(source: str, is_known: bool) -> None:
    """What the module has once it is loaded is the oracle."""
    module = ModuleType("model")
    sys.modules["model"] = module
    try:
        exec(source, vars(module))
        assert hasattr(module, "Model")
    finally:
        del sys.modules["model"]
    names = list_module_names(source)
    assert (names is not None and "Model" in names) if is_known else names is None


def test_a_name_that_a_module_does_not_bind_is_not_listed() -> None:
    source = (
        "import numpy as np\nclass Model:\n    inner = 1\n    def predict(self, x):\n        y = x\n        return y"
    )
    assert list_module_names(source) == {"np", "Model"}
    assert list_module_names("class Model") is None
