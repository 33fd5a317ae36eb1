"""Digests of what a step gets: equal for the same only, type for type."""

from __future__ import annotations

import enum
import os
import subprocess
import sys
from collections import OrderedDict
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanflow.backends.digests import FileDigests, UnknownContentError, ValueDigests

ATOMS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.complex_numbers()
    | st.text(max_size=5)
    | st.binary(max_size=5)
    | st.dates()
    | st.datetimes(timezones=st.none() | st.just(UTC) | st.just(timezone(timedelta(hours=2))))
    | st.timedeltas()
    | st.decimals(allow_nan=False)
)
HASHABLE = st.recursive(
    ATOMS, lambda inner: st.tuples(inner) | st.tuples(inner, inner) | st.frozensets(inner), max_leaves=4
)
VALUES = st.recursive(
    HASHABLE,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(HASHABLE, inner, max_size=3)
        | st.sets(HASHABLE, max_size=3)
    ),
    max_leaves=8,
)
SMALL = st.recursive(
    st.sampled_from([0, 0.0, -0.0, False, 1, 1.0, True, "1", b"1", None, Decimal(1), float("nan")]),
    lambda inner: (
        st.lists(inner, max_size=2) | st.tuples(inner) | st.dictionaries(st.sampled_from([0, False, 1.0, "a"]), inner)
    ),
    max_leaves=3,
)
"""Few values, so that equal ones are drawn."""


def describe(value: Any) -> Any:
    """Return a value that is equal for values that are the same in type, content and order; sets have none."""
    if isinstance(value, list | tuple):
        return type(value), [describe(item) for item in value]
    if isinstance(value, dict):
        return dict, [(describe(key), describe(item)) for key, item in value.items()]
    if isinstance(value, set | frozenset):
        return type(value), sorted(repr(describe(item)) for item in value)
    return type(value), repr(value)


def digest(value: Any, folder: Path = Path("/nowhere"), **places: Any) -> str:
    fields: dict[str, Any] = {"app_dir": folder, "outputs": folder / "outputs", "step": "own"}
    values = ValueDigests(FileDigests(), **{**fields, **places})
    return f"{values.compute(value)} {sorted(values.contents.items())}"


@given(VALUES, VALUES)
def test_values_have_one_digest_exactly_if_they_are_the_same(left: Any, right: Any) -> None:
    assert (digest(left) == digest(right)) == (describe(left) == describe(right))


@given(SMALL, SMALL)
def test_values_that_python_calls_equal_differ_by_their_types(left: Any, right: Any) -> None:
    assert (digest(left) == digest(right)) == (describe(left) == describe(right))


class Size(enum.IntEnum):
    ONE = 1


class Pair(NamedTuple):
    left: int
    right: int


@dataclass
class Holder:
    names: set[str] = field(default_factory=set)


class Names(set[str]):
    pass


class Whole(int):
    pass


def test_subclasses_and_numbers_of_other_libraries_are_not_the_plain_ones() -> None:
    values = [1, 1.0, True, "1", b"1", Size.ONE, Whole(1), np.int64(1), np.float32(1), np.float64(1), [1], (1,), {1}]
    values += [frozenset({1}), Pair(1, 2), (1, 2), {"a": 1}, OrderedDict(a=1), np.array([1]), np.array([1.0])]
    values += [
        pd.Series([1]),
        pd.DataFrame({"a": [1]}),
        Path("1"),
        date(2026, 1, 1),
        datetime(2026, 1, 1, tzinfo=UTC),
        10**5000,
    ]
    assert len({digest(value) for value in values}) == len(values)


def test_the_order_of_a_mapping_counts_as_a_step_sees_it() -> None:
    assert digest({"a": 1, "b": 2}) != digest({"b": 2, "a": 1})


def test_sets_within_objects_have_one_digest_in_every_process() -> None:
    program = (
        "import sys; from tests.unit.backends.test_digests import *\n"
        "names = {f'name-{n}' for n in range(50)}\n"
        "print(digest([names, Holder(names), Names(names), lambda: 1, np.arange(3), pd.DataFrame({'a': ['x', 'y']})]))"
    )

    def run(seed: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        return subprocess.run(
            [sys.executable, "-c", program], env=environment, text=True, capture_output=True, check=True
        ).stdout

    assert run("1") == run("2")


def test_a_value_that_holds_itself_has_a_digest() -> None:
    loop: list[Any] = [1]
    loop.append(loop)
    assert digest(loop) != digest([1, [1]])


def test_what_cannot_be_pickled_or_is_too_deep_is_unknown() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(UnknownContentError, match="a generator in it cannot be pickled"):
        digest([(n for n in [1])])
    with pytest.raises(UnknownContentError, match="nested too deeply"):
        digest(deep)


# Paths


def write(file: Path, text: str = "") -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


@pytest.mark.parametrize("kind", [Path, str])
def test_files_count_by_name_and_content(tmp_path: Path, kind: type) -> None:
    for name in ("a.csv", "b.csv", "sub/a.csv"):
        write(tmp_path / name, "header\n")
    names = ["a.csv", "b.csv", "sub/a.csv", "missing.csv", "gone.csv", str(tmp_path / "missing.csv")]
    assert len({digest(kind(name), tmp_path) for name in names}) == len(names)
    for nested in (kind("a.csv"), [kind("a.csv")], {"file": (kind("a.csv"),)}):
        write(tmp_path / "a.csv", "header\n")
        before = digest(nested, tmp_path)
        assert digest(nested, tmp_path) == before
        write(tmp_path / "a.csv", "HEADER\n")
        assert digest(nested, tmp_path) != before


def test_a_file_that_appears_later_counts(tmp_path: Path) -> None:
    before = digest(["late.csv"], tmp_path)
    write(tmp_path / "late.csv")
    assert digest(["late.csv"], tmp_path) != before


def test_folders_count_by_names_contents_and_links(tmp_path: Path) -> None:
    write(tmp_path / "data" / "a" / "x", "1")
    write(tmp_path / "other" / "y", "1")
    seen = [digest(Path("data"), tmp_path)]

    def has_changed() -> bool:
        seen.append(digest(Path("data"), tmp_path))
        return len(set(seen)) == len(seen)

    write(tmp_path / "data" / "a" / "x", "2")
    assert has_changed()
    (tmp_path / "data" / "a" / "x").rename(tmp_path / "data" / "a" / "z")
    assert has_changed()
    (tmp_path / "data" / "empty").mkdir()
    assert has_changed()
    (tmp_path / "data" / "link").symlink_to(tmp_path / "other")
    assert has_changed()
    write(tmp_path / "other" / "y", "2")
    assert has_changed(), "what a link leads to"
    (tmp_path / "data" / "self").symlink_to(tmp_path / "data")
    assert has_changed(), "and ends, where it leads back"
    write(tmp_path / "data" / "__pycache__" / "x.pyc")
    assert digest(Path("data"), tmp_path) == seen[-1]


def test_what_lies_in_a_runs_outputs_is_the_same_in_another_run(tmp_path: Path) -> None:
    def digest_in(run: str, name: str, content: str) -> str:
        file = write(tmp_path / run / "load" / name, content)
        return digest([str(file), file], tmp_path, outputs=tmp_path / run)

    assert digest_in("first", "x", "same") == digest_in("second", "x", "same")
    assert digest_in("third", "x", "other") != digest_in("first", "x", "same")
    assert digest_in("fourth", "y", "same") != digest_in("first", "x", "same")
    outputs = tmp_path / "first"
    before = digest(str(outputs / "own" / "model"), outputs=outputs)
    write(outputs / "own" / "model", "written by the step itself")
    assert digest(str(outputs / "own" / "model"), outputs=outputs) == before
    with pytest.raises(UnknownContentError, match="which other steps write to"):
        digest(str(outputs), outputs=outputs)


def test_a_pipe_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UnknownContentError, match="neither a file nor a folder"):
        digest(Path("pipe"), tmp_path)


def test_separators_are_no_folders(tmp_path: Path) -> None:
    before = digest([".", "/", "..", "\0", "\ud800", "x" * 5000], tmp_path)
    write(tmp_path / "new")
    assert digest([".", "/", "..", "\0", "\ud800", "x" * 5000], tmp_path) == before
    assert digest(Path(), tmp_path) != digest(Path("new"), tmp_path)
