"""Which model of a service an agent looks after, and what is said where that is not clear."""

from __future__ import annotations

import pytest

import scanflow as sf
from scanflow.errors import InvalidError
from scanflow_agents.templates.template_options import get_model_node

AGENT = sf.Agent(name="planner", template="planner")


def service(*models: str | None) -> sf.Workflow:
    nodes = [
        sf.Service(name=f"n{number}", model=model) if model else sf.Service(name=f"n{number}", implementation="m.py:M")
        for number, model in enumerate(models)
    ]
    join = [sf.Service(name="join", role="COMBINER", implementation="m.py:M")] if len(nodes) > 1 else []
    return sf.Workflow(name="serve", type="online", nodes=[*nodes, *join], edges=nodes >> join[0] if join else [])


def test_the_only_model_of_the_registry_is_the_one() -> None:
    assert get_model_node(AGENT, service("models:/loans@champion"), None) == ("n0", "loans")


@pytest.mark.parametrize(
    ("models", "node", "message"),
    [
        ((None,), None, r"no node of 'serve' is a model of the registry.*model='models:/NAME@champion'"),
        (("models:/a/1", "models:/b/1"), None, r"2 nodes of 'serve'.*Choose one: parameters=\{'node': \.\.\.\}"),
        (("models:/a/1",), "n9", r"'serve' has no node 'n9'"),
    ],
)
def test_another_number_of_models_is_refused_with_what_to_write(
    models: tuple[str | None, ...], node: str | None, message: str
) -> None:
    with pytest.raises(InvalidError, match=message):
        get_model_node(AGENT, service(*models), node)
