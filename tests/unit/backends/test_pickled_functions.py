"""Functions that are sent by value keep the name of their file, whichever cloudpickle pickles them."""

from __future__ import annotations

import pickle
from collections import ChainMap
from types import CodeType
from typing import Any

import cloudpickle
import pytest

from scanflow.backends import pickles

CELL = "/tmp/ipykernel_7/123.py"  # where IPython says that a cell is

SOURCE = """
def train(rows):
    def pick(name):
        return rows[name]
    return [pick(name) for name in ("depth",)]
"""


def reduce_without_file(code: CodeType) -> Any:
    """Reduce code as cloudpickle 3.1.3 does."""
    reducers: Any = cloudpickle.Pickler.dispatch_table
    make, arguments = reducers[CodeType](code)
    return make, tuple("<dynamic-code>" if argument == code.co_filename else argument for argument in arguments)


@pytest.mark.parametrize("forgets", [False, True])
def test_the_frames_of_a_function_name_its_file(monkeypatch: pytest.MonkeyPatch, forgets: bool) -> None:
    if forgets:
        reducers: Any = cloudpickle.Pickler.dispatch_table
        table = ChainMap({CodeType: reduce_without_file}, reducers)
        monkeypatch.setattr(pickles.FunctionPickler, "dispatch_table", table, raising=False)
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(SOURCE, CELL, "exec"), names)
    again = pickle.loads(pickles.dump_function(names["train"]))
    with pytest.raises(KeyError) as failure:
        again({})
    files = [str(entry.path) for entry in failure.traceback]
    assert files[1:] == [CELL] * (len(files) - 1)
    assert len(files) >= 3
