"""What was done to a service that really serves is taken back, and then is as it was."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scanflow.agent.records import Action
from scanflow.backends.local.services.layout import ServicesHome
from scanflow.backends.local.services.state.desired import read_desired
from scanflow.loading import load_application
from scanflow.settings import Settings
from scanflow_server.arbiter.engine import ArbiterEngine
from scanflow_server.context import ServerContext, make_context
from scanflow_server.primitives import ApplicationStore
from scanflow_server.settings import ServerSettings
from scanflow_server.store import intents as kept
from scanflow_server.store.migrations import migrate
from tests.applications import keep_application
from tests.unit.server.answering import acting
from tests.unit.server.arbiter.making import intent
from tests.waiting import until

APP = """
import scanflow as sf


class Echo:
    def predict(self, inputs):
        return inputs


echo = sf.Service(name="echo", implementation="mnist_app.py:Echo", instances=2)
app = sf.Application(
    name="mnist", team="tests", workflows=[sf.Workflow(name="serve", type="online", nodes=[echo])]
)
"""


@pytest.fixture
def context(home: Path, tmp_path: Path) -> Iterator[ServerContext]:
    (tmp_path / "mnist_app.py").write_text(APP, encoding="utf-8")
    context = make_context(ServerSettings(library=Settings(home=home, slots=2)))
    migrate(context.store)
    app, path, _ = load_application(str(tmp_path / "mnist_app.py"))
    keep_application(context, app, source=path)
    yield context
    for record in context.deployer.services():
        context.deployer.delete(record.name)
    context.store.close()


@pytest.fixture
def engine(context: ServerContext) -> Iterator[ArbiterEngine]:
    with acting(context) as engine:
        yield engine


def done(
    context: ServerContext, engine: ArbiterEngine, id: str, primitive: str, field: str, **arguments: Any
) -> Action:
    given = {"primitive": primitive, "target": "service/serve", "fields": [field]}
    engine.submit(intent(id, **given, arguments={"workflow": "serve", **arguments}))

    def action() -> Action:
        with context.store.read() as connection:
            stored = kept.get(connection, id)
        assert stored is not None
        return stored.action

    until(lambda: action().ended is not None, f"the action {id} is over")
    assert action().error is None
    return action()


def test_a_scaling_is_added_and_taken_back_and_so_is_the_service(
    context: ServerContext, engine: ArbiterEngine, home: Path
) -> None:
    folder, applications = ServicesHome(home / "services").service("serve"), ApplicationStore(context)
    before = applications.get("mnist", "tests").application
    done(context, engine, "i1", "deploy_workflow", "running")
    scaled = done(context, engine, "i2", "update_workflow_replica", "replicas", metric="queue", target=9, max=1)
    stored = read_desired(folder)
    assert stored is not None
    assert stored.definition.scaling is not None
    assert scaled.result is not None
    reverted = engine.revert("i2", by="ann", timeout_s=60)
    assert (reverted.state, reverted.error) == ("reverted", None)
    stored = read_desired(folder)
    assert stored is not None
    assert (stored.definition.scaling, stored.definition.shape.instances) == (None, 2)
    assert applications.get("mnist", "tests").application == before
    context.deployer.delete("serve")  # by somebody else: it is gone, as it is to be
    reverted = engine.revert("i1", by="ann", timeout_s=60)
    assert (reverted.state, reverted.error) == ("reverted", None)
