from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanflow.backends.step_cache import copy_outputs
from scanflow.backends.task_parameters import pick_output
from scanflow.backends.values import Outputs, format_argument, write_result
from scanflow.errors import InvalidError, NotFoundError

KEY = b"k" * 32


def read_outputs(folder: Path) -> dict[str, Any]:
    return dict(Outputs(folder, KEY))


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=5) | st.sampled_from(["$path", "$pickle", "$value"]), inner, max_size=3)
    ),
    max_leaves=12,
)


@dataclasses.dataclass(frozen=True)
class Model:
    weights: tuple[float, ...]


@given(plain)
def test_plain_values_come_back_as_they_were(value: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_result(value, Path(folder), KEY)
        assert read_outputs(Path(folder)) == {"result": value}


def test_what_is_not_plain_comes_back_too(tmp_path: Path) -> None:
    value = {"model": Model((1.0, 2.0)), "also": [Model(()), {1, 2}]}
    write_result(value, tmp_path, KEY)
    assert read_outputs(tmp_path)["result"] == value


def test_a_path_in_the_output_folder_is_right_after_a_move(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    (first / "data.txt").write_text("here")
    write_result([first / "data.txt", Path("/elsewhere")], first, KEY)
    copy_outputs(first, second)
    outputs = read_outputs(second)["result"]
    assert outputs == [second / "data.txt", Path("/elsewhere")]
    assert outputs[0].read_text() == "here"


def test_text_that_is_not_json_is_that_text(tmp_path: Path) -> None:
    (tmp_path / ".outputs").mkdir()
    (tmp_path / ".outputs" / "verdict").write_text("good enough\n")
    assert read_outputs(tmp_path) == {"verdict": "good enough"}


def test_what_cannot_be_kept_says_what_to_do(tmp_path: Path) -> None:
    with (tmp_path / "x").open("w") as file, pytest.raises(InvalidError, match="Write a file and return its path"):
        write_result(file, tmp_path, KEY)


def test_an_output_is_found_by_name_before_it_is_looked_for_in_the_result() -> None:
    outputs = {"accuracy": 1, "result": {"accuracy": 2, "loss": 3}}
    assert pick_output(outputs, "accuracy", "train") == 1
    assert pick_output(outputs, "loss", "train") == 3


def test_an_unknown_output_says_which_was_meant() -> None:
    with pytest.raises(NotFoundError, match=r"'train' has no output 'acuracy'. Did you mean 'accuracy'"):
        pick_output({"accuracy": 1}, "acuracy", "train")


def test_an_argument_too_long_for_a_command_line_is_refused() -> None:
    with pytest.raises(InvalidError, match="Pass the path of a file"):
        format_argument(["x" * 200_000], who="Executor 'a': the parameter 'xs'")


def test_text_is_an_argument_as_it_is_and_the_rest_is_json() -> None:
    given_ = ["a b", 3, 0.5, True, ["x", 1], {"k": Path("/p")}, Path("/q")]
    expected = ["a b", "3", "0.5", "true", '["x", 1]', '{"k": "/p"}', "/q"]
    assert [format_argument(value, who="x") for value in given_] == expected
