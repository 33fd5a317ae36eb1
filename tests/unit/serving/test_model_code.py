"""Two versions of a model, each with modules of its own of the same names, are answered by their own code."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scanflow.errors import UnsupportedError
from scanflow.instance_messages import ModelFiles
from scanflow.knowledge import model_code
from scanflow.knowledge.model_code import use_code

TRANSFORMER = """
from sklearn.base import BaseEstimator, TransformerMixin
from helpers.offsets import OFFSET

class Shift(TransformerMixin, BaseEstimator):
    def fit(self, x, y=None):
        return self

    def transform(self, x):
        return x + OFFSET
"""


@pytest.fixture(autouse=True)
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(model_code, "used_folders", {})
    monkeypatch.setattr("scanflow.modules.user_folders", set())
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in {"helpers", "shifts", "late", "alike"}:
            del sys.modules[name]


def write_code(folder: Path, offset: int) -> Path:
    (folder / "helpers").mkdir(parents=True)
    (folder / "helpers" / "__init__.py").touch()
    (folder / "helpers" / "offsets.py").write_text(f"OFFSET = {offset}\n")
    (folder / "shifts.py").write_text(TRANSFORMER)
    return folder


def save_pipeline(project: Path, folder: Path, *modules: str) -> Any:
    """Save a pipeline that uses a project's code, with these modules of it, and return it."""
    mlflow, numpy = pytest.importorskip("mlflow"), pytest.importorskip("numpy")
    from sklearn.linear_model import LinearRegression
    from sklearn.pipeline import make_pipeline

    use_code(project, "the project")
    shift = importlib.import_module("shifts").Shift()
    regression = LinearRegression(fit_intercept=False).fit(numpy.array([[1.0], [2.0]]), [1.0, 2.0])
    model = make_pipeline(shift, regression)
    mlflow.sklearn.save_model(
        model,
        str(folder),
        code_paths=[str(project / name) for name in modules] or None,
        serialization_format="cloudpickle",
        pip_requirements=["scikit-learn"],
    )
    return model


@pytest.mark.filterwarnings("default")
def test_versions_of_a_model_are_answered_by_their_own_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oracle is each version's pipeline, called where it was fitted."""
    numpy = pytest.importorskip("numpy")
    from scanflow_serving.flavors import open_model

    rows = numpy.array([[1.0], [2.0], [5.0]])
    expected: dict[int, Any] = {}
    for version, offset in ((1, 100), (2, 500)):
        project = write_code(tmp_path / f"project-{version}", offset)
        model = save_pipeline(project, tmp_path / f"v{version}", "shifts.py", "helpers")
        expected[version] = model.predict(rows)
    assert expected[1].tolist() == [101.0, 102.0, 105.0]
    assert expected[2].tolist() == [501.0, 502.0, 505.0]
    opened = {
        version: open_model(ModelFiles(name="own", version=version, path=str(tmp_path / f"v{version}")), {}, threads=1)
        for version in (1, 2)
    }
    for version in (2, 1, 2):
        assert opened[version].predict(rows).ravel().tolist() == expected[version].tolist()
        assert not [note for note in opened[version].notes if "not saved with it" in note]


@pytest.mark.filterwarnings("default")
def test_a_version_that_was_saved_without_its_code_is_opened_with_a_warning(tmp_path: Path) -> None:
    from scanflow_serving.flavors import open_model

    save_pipeline(write_code(tmp_path / "project", 100), tmp_path / "model")
    for name in ("shifts", "helpers", "helpers.offsets"):
        del sys.modules[name]
    opened = open_model(ModelFiles(name="own", version=1, path=str(tmp_path / "model")), {}, threads=1)
    [warning] = [note for note in opened.notes if "not saved with it" in note]
    assert warning.endswith("log_model(..., code_paths=['helpers', 'shifts.py']).")


def test_modules_that_are_alike_are_shared_and_installed_ones_stay(tmp_path: Path) -> None:
    for version in ("a", "b"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "alike.py").write_text("def answer():\n    import alike\n    return alike.__file__\n")
        (tmp_path / version / "json.py").write_text("raise ImportError('json of a model')\n")
    use_code(tmp_path / "a", "version 1")
    alike = importlib.import_module("alike")
    use_code(tmp_path / "b", "version 2")
    assert alike.answer() == str(tmp_path / "b" / "alike.py"), "which is the same"
    assert "site-packages" not in str(sys.modules["json"].__file__)
    assert sys.modules["json"].__file__ != str(tmp_path / "b" / "json.py")


def test_a_version_that_imports_its_module_within_a_function_is_not_mixed_with_another(tmp_path: Path) -> None:
    for version, where in (("a", "    import late\n"), ("b", "    pass\n"), ("c", "    import math\n")):
        (tmp_path / version).mkdir()
        (tmp_path / version / "late.py").write_text(f"def answer():\n{where}    return {version!r}\n")
    use_code(tmp_path / "a", "version 1")
    with pytest.raises(UnsupportedError, match=r"^version 2 cannot .*: late.py of version 1, which was loaded before,"):
        use_code(tmp_path / "b", "version 2")
    model_code.used_folders.clear()
    use_code(tmp_path / "b", "version 2")
    with pytest.raises(UnsupportedError, match=r"^version 1 cannot .*: late.py of this version imports"):
        use_code(tmp_path / "a", "version 1")
    model_code.used_folders.clear()
    use_code(tmp_path / "b", "version 2")
    use_code(tmp_path / "c", "version 3")
    assert importlib.import_module("late").answer() == "c"
