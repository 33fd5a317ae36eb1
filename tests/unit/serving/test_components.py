"""Users' classes: how they are made, looked at and called."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scanflow.errors import InvalidError, NotFoundError, UsageError
from scanflow.instance_messages import ModelFiles, Node
from scanflow_serving.components import Component, load_component, make_component_problem
from scanflow_serving.inference_problems import ProblemError
from scanflow_serving.signature import UNDECLARED
from tests.unit.serving.serving_harness import node, write_class


def load(path: Path, kind: str = "Model", **changes: Any) -> Component:
    return load_component(node("n", path, kind, **changes), threads=1)


@pytest.mark.parametrize(
    ("signature", "got"),
    [
        ("self, X", ["v"]),
        ("self, X, names", ["v", ["a"]]),
        ("self, X, names=None", ["v", ["a"]]),
        ("self, X, features_names, meta", ["v", ["a"], {"m": 1}]),
        ("self, X, names=None, meta=None", ["v", ["a"], {"m": 1}]),
        ("self, X, meta=None", ["v", {"m": 1}]),
        ("self, X, *, meta", ["v", {"m": 1}]),
        ("self, X, names, other", ["v", ["a"], {"m": 1}]),
        ("self, X, names=None, other=5", ["v", ["a"], 5]),
        ("self, X, names, **more", ["v", ["a"], {"meta": {"m": 1}}]),
        ("self, *all", [("v", ["a"], {"m": 1})]),
    ],
)
def test_a_method_gets_what_its_signature_asks_for(tmp_path: Path, signature: str, got: list[Any]) -> None:
    names = [part.split("=")[0].strip().strip("*") for part in signature.split(",")[1:]]
    parameters = ", ".join(name for name in names if name)
    path = write_class(tmp_path, f"class Model:\n    def predict({signature}):\n        return [{parameters}]\n")
    assert load(path).call("v", ["a"], {"m": 1}) == got


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("def predict(self): pass", "takes no argument"),
        ("def predict(self, X, names, meta, more): pass", "needs an argument 'more'"),
        ("def predict(self, X, *, mode): pass", "needs an argument 'mode'"),
        ("def predicted(self, X): pass", "needs a method 'predict', which is missing"),
        ("def transform_input(self, X): pass", "It has transform_input: check the role"),
        ("predict = 5", "needs a method 'predict'"),
        ("def predict(self, X): yield X", "yields its result, but one answer is sent. Return a list"),
        ("async def predict(self, X): yield X", "yields its result"),
    ],
)
def test_a_method_that_cannot_be_called_is_refused(tmp_path: Path, method: str, words: str) -> None:
    with pytest.raises(InvalidError) as caught:
        load(write_class(tmp_path, f"class Model:\n    {method}\n"))
    assert words in str(caught.value)


CLASS = """
class Model:
    class_names = ["cat", "dog"]
    inputs = [{"name": "x", "datatype": "FP32", "shape": [-1]}]

    def __init__(self, scale=1, shift=0):
        self.scale, self.shift, self.steps = scale, shift, []

    def load(self):
        self.steps.append("load")

    def warm_up(self):
        self.steps.append("warm_up")

    def health_status(self):
        self.steps.append("health_status")

    def predict(self, X):
        return X * self.scale + self.shift
"""


def test_a_class_is_made_loaded_warmed_up_and_checked_for_health(tmp_path: Path) -> None:
    component = load(write_class(tmp_path, CLASS), parameters={"scale": 3})
    assert component.call(2, [], {}) == 6
    assert vars(component.subject)["steps"] == ["load", "warm_up", "health_status"]
    assert component.class_names == ["cat", "dog"]
    assert component.signature.inputs[0].name == "x"
    assert not component.is_async


def test_methods_may_be_asynchronous(tmp_path: Path) -> None:
    path = write_class(
        tmp_path,
        """
        class Model:
            async def load(self):
                self.loaded = True
            async def predict(self, X):
                return X
        """,
    )
    component = load(path)
    assert component.is_async
    assert vars(component.subject)["loaded"] is True


@pytest.mark.parametrize(
    ("text", "parameters", "words"),
    [
        (CLASS, {"scael": 3}, "has no parameter 'scael'. Did you mean 'scale'?"),
        ("class Model:\n    def predict(self, X): pass", {"a": 1}, "has no parameter 'a'. It takes none."),
        ("class Model:\n    def __init__(self, path): pass\n    def predict(self, X): pass", {}, "'path'"),
        ("def Model(X): pass", {}, "is not a class"),
    ],
)
def test_parameters_are_checked_by_name(tmp_path: Path, text: str, parameters: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidError) as caught:
        load(write_class(tmp_path, text), parameters=parameters)
    assert words in str(caught.value)


@pytest.mark.parametrize("kind", ["Modle", "missing.Model"])
def test_a_class_that_is_not_there_is_not_found(tmp_path: Path, kind: str) -> None:
    with pytest.raises(NotFoundError):
        load(write_class(tmp_path, CLASS), kind)


@pytest.mark.parametrize(
    "text",
    [
        "raise OSError('no disk')",
        "class Model:\n    def __init__(self):\n        raise OSError('no disk')",
        "class Model:\n    def load(self):\n        raise OSError('no disk')\n    def predict(self, X): pass",
        "class Model:\n    def warm_up(self):\n        raise OSError('no disk')\n    def predict(self, X): pass",
        "class Model:\n    def health_status(self):\n        raise OSError('no disk')\n    def predict(self, X): pass",
    ],
)
def test_what_a_users_code_raises_is_reported_with_its_own_frames(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError) as caught:
        load(write_class(tmp_path, text))
    message = str(caught.value)
    assert "The node 'n' cannot be loaded:" in message
    assert "user.py:" in message
    assert "OSError: no disk" in message
    assert "components.py" not in message
    assert "modules.py" not in message


def test_even_the_end_of_the_process_is_only_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="SystemExit"):
        load(write_class(tmp_path, "raise SystemExit(3)"))


class RefusedError(Exception):
    status_code = 403


class OddError(Exception):
    status_code = "teapot"

    def __str__(self) -> str:
        raise RuntimeError("no words")


def test_an_exception_may_choose_its_status() -> None:
    assert make_component_problem("n", RefusedError("not you")).status == 403
    assert make_component_problem("n", OddError()).status == 500
    assert make_component_problem("n", ProblemError(422, "as it is")).status == 422


def test_a_module_of_the_path_is_found_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_class(tmp_path, CLASS, "user_module.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    component = load_component(Node(name="n", implementation="user_module:Model"), threads=1)
    assert component.call(2, [], {}) == 2


class ScarceError(RuntimeError):
    """As ``torch.OutOfMemoryError``."""


@pytest.mark.parametrize(
    ("error", "input_errors", "is_refused"),
    [
        (RuntimeError("mat1 and mat2 must have the same dtype."), (RuntimeError,), True),
        (ScarceError("no memory left"), (RuntimeError,), False),
        (RuntimeError("the feature store is away"), (), False),
    ],
)
def test_a_model_of_pytorch_refuses_an_input_by_a_runtime_error(
    monkeypatch: pytest.MonkeyPatch, error: RuntimeError, input_errors: tuple[type[RuntimeError], ...], is_refused: bool
) -> None:
    def predict(*_: Any) -> Any:
        raise error

    predictor = SimpleNamespace(
        predict=predict, signature=UNDECLARED, platform="pyfunc", notes=(), input_errors=input_errors
    )
    monkeypatch.setattr("scanflow_serving.flavors.open_model", lambda *_, **_options: predictor)
    component = load_component(Node(name="n", model=ModelFiles(name="m", version=1, path="")), threads=1)
    with pytest.raises(ProblemError if is_refused else RuntimeError) as caught:
        component.call([1.0], (), {})
    problem = make_component_problem("The node 'n'", caught.value)
    assert problem.status == (422 if is_refused else 500)
    assert ("datatype FP32" in problem.detail) is is_refused
    assert ".." not in problem.detail
