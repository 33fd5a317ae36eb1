"""The node of an online inference graph."""

from __future__ import annotations

import pytest

import scanflow as sf
from scanflow.errors import InvalidError

MODEL = "models:/cnn@champion"


def test_what_is_no_address_in_the_registry_says_how_one_is_written() -> None:
    with pytest.raises(
        InvalidError, match=r"Service 'cnn': the model .* is not an address in the registry. Write 'models:/cnn"
    ):
        sf.Service(name="cnn", model="models:/cnn")
    with pytest.raises(InvalidError, match="Write 'models:/name@champion' or 'models:/name/1'"):
        sf.Service(name="cnn", model="models:/")


def test_services_are_linked_like_steps() -> None:
    before, model = (
        sf.Service(name="before", implementation="a.py:A", role="TRANSFORMER"),
        sf.Service(name="cnn", model=MODEL),
    )
    workflow = sf.Workflow(name="serving", type="online", nodes=[before, model], edges=before >> model)
    assert workflow.parents == {"before": (), "cnn": ("before",)}
    assert workflow.steps == ()


def test_a_class_itself_is_refused_with_the_line_to_write() -> None:
    class Model:
        pass

    Model.__qualname__ = "Model"
    with pytest.raises(InvalidError, match=r"implementation='test_service\.py:Model'"):
        sf.Service(name="cnn", implementation=Model)  # type: ignore[arg-type]
    Model.__module__ = "__main__"
    with pytest.raises(InvalidError, match=r"(?s)implementation='model\.py:Model'.*%%writefile model\.py"):
        sf.Service(name="cnn", implementation=Model)  # type: ignore[arg-type]
