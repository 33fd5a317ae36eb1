"""The node of an online inference graph."""

from __future__ import annotations

from typing import Any

import pytest

import scanflow as sf
from scanflow.errors import InvalidError
from tests.unit.app.making import made, message, script

MODEL = "models:/cnn@champion"


@pytest.mark.parametrize("fields", [{}, {"implementation": "a.py:A", "model": MODEL}])
def test_a_service_is_a_class_or_a_model_and_not_both(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidError) as error:
        sf.Service(name="cnn", **fields)
    assert message(error) == (
        "Service 'cnn' needs either an 'implementation' (a Python class) or a 'model', and not both."
    )


@pytest.mark.parametrize("model", [MODEL, "models:/cnn/3", "models:/my-model/12"])
def test_an_address_in_the_registry_is_taken(model: str) -> None:
    assert sf.Service(name="cnn", model=model).role == "MODEL"


@pytest.mark.parametrize(
    "model", ["cnn", "/cnn", "models:/cnn", "models:cnn", "models:/cnn@", "models:/cnn/", "models:/cnn@a/b"]
)
def test_what_is_no_address_in_the_registry_says_how_one_is_written(model: str) -> None:
    with pytest.raises(
        InvalidError, match=r"Service 'cnn': the model .* is not an address in the registry. Write 'models:/cnn"
    ):
        sf.Service(name="cnn", model=model)
    with pytest.raises(InvalidError, match="Write 'models:/name@champion' or 'models:/name/1'"):
        sf.Service(name="cnn", model="models:/")


@pytest.mark.parametrize("text", ["model", "model.py", "model.py:", ":Model", "model.py: Model", "", "a:b c"])
def test_an_implementation_says_where_its_class_is(text: str) -> None:
    with pytest.raises(
        InvalidError, match=r"Service 'cnn': The implementation .* cannot be read. Write 'file.py:name'"
    ):
        sf.Service(name="cnn", implementation=text)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"role": "MODLE"}, "Service 'cnn': role 'MODLE' is not known. Did you mean 'MODEL'?"),
        ({"role": 3}, "Service 'cnn': role 3 is not known. Known: COMBINER, MODEL"),
        ({"role": "router"}, "Service 'cnn' has a registry model, so its role is MODEL, not ROUTER."),
        ({"instances": -1}, "Service 'cnn': instances cannot be -1: it should be greater than or equal to 0."),
        ({"instances": True}, "Service 'cnn': instances cannot be True: it should be a number."),
        (
            {"parameters": {"m": object()}},
            "Service 'cnn': the parameter 'm' is an object, which cannot be written down.",
        ),
        (
            {"parameters": {"m": script("a")}},
            "Service 'cnn': the parameter 'm' is an Executor, which cannot be written down.",
        ),
        (
            {"parameters": {"m": script("a")["x"]}},
            "Service 'cnn': the parameter 'm' is a Ref, which cannot be written down.",
        ),
        ({"parameters": {"m": {"$from": "a.x"}}}, "Service 'cnn': the parameter 'm' has the key '$from'"),
        ({"scaling": {"metric": "rps", "target": -1}}, "Service 'cnn': Scaling: target cannot be -1"),
        ({"replicas": 3}, "Service 'cnn' has no field 'replicas'."),
        ({"name": "CNN"}, "The service name 'CNN' cannot be used: .* Write 'cnn' instead."),
    ],
)
def test_a_wrong_field_is_refused_with_what_to_write(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidError, match=told.replace("(", r"\(").replace("$", r"\$")):
        made(sf.Service, **{"name": "cnn", "model": MODEL, **fields})


def test_changing_what_was_handed_in_changes_no_service() -> None:
    classes = ["cat"]
    service = sf.Service(name="cnn", model=MODEL, parameters={"classes": classes})
    classes.append("dog")
    assert service.parameters == {"classes": ["cat"]}
    with pytest.raises(InvalidError, match="cannot be changed"):
        service.parameters["classes"] = []  # type: ignore[index]


def test_a_role_may_be_written_in_any_case() -> None:
    assert sf.Service(name="r", implementation="router.py:Router", role="router").role == "ROUTER"  # type: ignore[arg-type]  # as in a file


def test_services_are_linked_like_steps() -> None:
    before, model = (
        sf.Service(name="before", implementation="a.py:A", role="TRANSFORMER"),
        sf.Service(name="cnn", model=MODEL),
    )
    workflow = sf.Workflow(name="serving", type="online", nodes=[before, model], edges=before >> model)
    assert workflow.parents == {"before": (), "cnn": ("before",)}
    assert workflow.steps == ()
