"""A primitive that a user's own package adds: one class and one entry point, for author, arbiter and control plane."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scanflow.agent import primitives as do
from scanflow.agent.agent_records import PrimitiveCall
from scanflow.deployer import EmbeddedDeployer
from scanflow.errors import InvalidError, NotFoundError
from scanflow.settings import Settings
from scanflow_server.arbiter.intent_service import check_intent
from tests.unit.server.arbiter.intent_builders import intent
from tests.unit.server.primitives.primitive_runs import Remembered
from tests.unit.server.primitives.primitive_runs import do as carry_out
from tests.unit.server.primitives.test_batch import applications, deployer  # noqa: F401  # pyright: ignore[reportUnusedImport]  fixtures

TOY = '''
from typing import Annotated
from pydantic import Field
from scanflow.agent.primitive_model import PrimitiveModel, PrimitiveResult

class TouchWorkflow(PrimitiveModel):
    """Touch a workflow: it is as it was. For tests."""

    name = "touch_workflow"
    writes = ("touched",)
    times: Annotated[int, Field(ge=1, description="How often.")] = 1

    def carry_out(self, context):
        stored, workflow = context.workflow(self.workflow)
        inverse = context.undo("touch_workflow", {"workflow": workflow.name})
        return PrimitiveResult({"touched": f"{context.app}/{workflow.name}", "times": self.times}, inverse)
'''


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site"
    info = site / "toy_primitive-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "toy_primitive.py").write_text(TOY)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-primitive\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[scanflow.primitives]\ntouch_workflow = toy_primitive:TouchWorkflow\n")
    monkeypatch.syspath_prepend(str(site))


@pytest.mark.usefixtures("toy")
def test_it_is_listed_a_strategy_wants_it_and_the_arbiter_takes_it() -> None:
    (row,) = [primitive for primitive in do.catalogue() if primitive.name == "touch_workflow"]
    assert (row.what, row.kind, row.fields) == ("Touch a workflow: it is as it was.", "batch", ("touched",))
    parameters = [(parameter.name, parameter.required, parameter.what) for parameter in row.parameters]
    assert parameters == [("workflow", True, ""), ("times", False, "How often.")]
    act = do.touch_workflow(workflow="sums", times=2)  # type: ignore[attr-defined]
    assert (act.target, act.fields, dict(act.arguments)) == (
        "workflow/sums",
        ("touched",),
        {"workflow": "sums", "times": 2},
    )
    fields: dict[str, Any] = {"primitive": act.primitive, "arguments": dict(act.arguments), "target": act.target}
    check_intent(intent("i1", **fields, fields=act.fields))
    with pytest.raises(InvalidError, match="touched"):
        check_intent(intent("i1", **fields, fields=("replicas",)))
    with pytest.raises(InvalidError, match="times"):
        do.touch_workflow(workflow="sums", times=0)  # type: ignore[attr-defined]


@pytest.mark.usefixtures("toy")
def test_the_control_plane_carries_it_out(deployer: EmbeddedDeployer, applications: Remembered) -> None:  # noqa: F811
    call = PrimitiveCall(primitive="touch_workflow", arguments={"workflow": "sums", "times": 3})
    notes: list[PrimitiveCall] = []
    done = carry_out(deployer, applications, call, app="counting", team="tests", key="k", note=notes.append)
    assert done.result == {"touched": "counting/sums", "times": 3}
    assert [done.inverse] == notes


def test_without_the_package_there_is_none(settings: Settings) -> None:
    with pytest.raises(NotFoundError, match="no primitive 'touch_workflow'"):
        do.parse_act("touch_workflow", {"workflow": "sums"})
    with pytest.raises(AttributeError, match="touch_workflow"):
        do.touch_workflow  # type: ignore[attr-defined]  # noqa: B018
    call = PrimitiveCall(primitive="touch_workflow", arguments={"workflow": "sums"})
    with pytest.raises(NotFoundError, match="no primitive 'touch_workflow'"):
        carry_out(EmbeddedDeployer(settings), Remembered.__new__(Remembered), call, app="a", team="t")
