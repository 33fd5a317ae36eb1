"""``sf.output``: how a script names a value for later steps."""

from __future__ import annotations

import json
import threading
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import scanflow as sf
from scanflow.outputs import OUTPUTS_FOLDER, use_output_dir
from tests.unit.app.app_builders import plain_values
from tests.waiting import PATIENCE_S


def read(folder: Path, name: str) -> Any:
    return json.loads((folder / OUTPUTS_FOLDER / name).read_text(encoding="utf-8"))


@given(value=plain_values)
def test_a_value_is_kept_as_json_under_its_name(value: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("step")
    with use_output_dir(folder):
        sf.output("accuracy", "an earlier value")
        sf.output("accuracy", value)
    assert read(folder, "accuracy") == value
    assert [file.name for file in (folder / OUTPUTS_FOLDER).iterdir()] == ["accuracy"]


@given(
    name=st.text(min_size=1, max_size=30).filter(
        lambda name: not set("/\0") & set(name) and name[0] != "." and name.isprintable()
    )
)
def test_any_name_that_a_file_can_have_is_taken(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("step")
    with use_output_dir(folder):
        sf.output(name, 1)
    assert read(folder, name) == 1


@pytest.mark.parametrize("name", ["", ".", "..", ".hidden", "a/b", "/etc/passwd", "../x", "a\0b", "x" * 201])
def test_a_name_that_no_file_can_have_is_refused_and_nothing_is_written(name: str, tmp_path: Path) -> None:
    with use_output_dir(tmp_path), pytest.raises(ValueError, match=r"cannot be used. Use letters, digits, '_' and '-'"):
        sf.output(name, 1)
    assert list(tmp_path.iterdir()) == []


def make_circular() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


@pytest.mark.parametrize("value", [object(), {1, 2}, b"x", {(1, 2): 3}, make_circular(), [lambda: None]])
def test_what_is_not_json_is_refused_by_its_name_and_nothing_is_written(value: Any, tmp_path: Path) -> None:
    with (
        use_output_dir(tmp_path),
        pytest.raises(
            ValueError, match=r"The output 'model' cannot be written as JSON .*Return it from the step, or write a file"
        ),
    ):
        sf.output("model", value)
    assert list(tmp_path.iterdir()) == []


def test_a_path_inside_the_output_folder_is_kept_relative_to_it(tmp_path: Path) -> None:
    with use_output_dir(tmp_path):
        sf.output("model", sf.output_dir() / "model.npz")
        sf.output("other", [PurePosixPath("/srv/data.csv")])
    assert read(tmp_path, "model") == {"$path": "model.npz"}
    assert read(tmp_path, "other") == [{"$path": "/srv/data.csv"}]


def test_a_number_of_numpys_is_a_number(tmp_path: Path) -> None:
    class Scalar:
        """As NumPy's: no subclass of int, but with the same way out."""

        shape = ()

        def item(self) -> int:
            return 3

    with use_output_dir(tmp_path):
        sf.output("count", {"of": Scalar()})
    assert read(tmp_path, "count") == {"of": 3}


def test_a_script_finds_its_folder_in_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCANFLOW_OUTPUT_DIR", str(tmp_path))
    with pytest.raises(ZeroDivisionError), use_output_dir(tmp_path / "inner"):
        raise ZeroDivisionError
    assert sf.output_dir() == tmp_path
    monkeypatch.delenv("SCANFLOW_OUTPUT_DIR")
    assert sf.output_dir() == Path()


def test_steps_in_threads_of_one_process_have_folders_of_their_own(tmp_path: Path) -> None:
    both_inside = threading.Barrier(2, timeout=PATIENCE_S)

    def run(name: str) -> None:
        with use_output_dir(tmp_path / name):
            both_inside.wait()
            sf.output("name", name)

    threads = [threading.Thread(target=run, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (read(tmp_path / "a", "name"), read(tmp_path / "b", "name")) == ("a", "b")
    assert "name" not in {file.name for file in tmp_path.iterdir()}
