"""Which version a service has in use: each change is an event with who decided, or by which comparison."""

from __future__ import annotations

from typing import Any

import pytest

from scanflow.backends.service_records import RevisionRecord, ServiceRecord
from scanflow_server.arbiter.engine_assembly import build_engine
from scanflow_server.arbiter.why import explain_action
from scanflow_server.control.service_controller import ServicesController
from scanflow_server.server_context import ServerContext
from scanflow_server.store import event_store, intent_store
from scanflow_server.store.intent_store import ActionRow
from tests.unit.server.answering import a_service
from tests.unit.server.arbiter.intent_builders import action, intent


class Shop:
    """A service, and what the server tells of its versions."""

    def __init__(self, context: ServerContext, monkeypatch: pytest.MonkeyPatch) -> None:
        self.context = context
        self.serve(1)
        monkeypatch.setattr(context.deployer, "services", lambda: [self.record])
        self.controller = ServicesController(context, build_engine(context))

    def serve(self, version: int, *, canary: int | None = None, settled: int = 1) -> None:
        revisions = [RevisionRecord(id=f"r{version}", models={"digits": f"models:/digits/{version}"}, requests=90)]
        if canary is not None:
            models = {"digits": f"models:/digits/{canary}"}
            revisions.append(RevisionRecord(id=f"r{canary}", models=models, role="canary", requests=100, p95_s=0.005))
        record = a_service("digits", "ready")
        changes = {"revisions": tuple(revisions), "generation": 1, "settled": settled}
        self.record: ServiceRecord = record.model_copy(update=changes)

    def did(self, id: str, **about: Any) -> None:
        """Note an action in effect on the service."""
        fields = {"fields": ("model", "traffic"), "target": "service/digits", "primitive": "change"}
        of = intent(id, app=self.record.app, team=self.record.team, **{**fields, **about})
        with self.context.store.write() as connection:
            intent_store.add(connection, ActionRow(action=action(of, began=self.context.clock())))

    def tell(self) -> list[dict[str, Any]]:
        self.controller.tick()
        with self.context.store.read() as connection:
            listed = event_store.list_after(connection, 0, type="service.version")
        return [{name: event.data.get(name) for name in ("before", "now", "how", "by")} for event in listed]


@pytest.fixture
def shop(context: ServerContext, monkeypatch: pytest.MonkeyPatch) -> Shop:
    return Shop(context, monkeypatch)


V1, V2 = {"digits": "models:/digits/1"}, {"digits": "models:/digits/2"}


def test_a_version_that_a_person_put_in_use_is_reported_with_the_name_once(shop: Shop) -> None:
    shop.did("deploy-1", source="person", agent="ada", arguments={})
    first = {"before": {}, "now": V1, "how": "person", "by": "ada"}
    assert shop.tell() == shop.tell() == [first]
    shop.serve(2, settled=0)
    assert shop.tell() == [first], "it may still be given up"
    shop.serve(2)
    shop.did("change-2", source="person", agent="bea", arguments={"promote": True})
    assert shop.tell() == [first, {"before": V1, "now": V2, "how": "person", "by": "bea"}]
    shop.controller = ServicesController(shop.context, build_engine(shop.context))
    assert len(shop.tell()) == 2, "another server tells it not again"


def test_a_version_that_a_canarys_rule_put_in_use_is_reported_with_the_comparison(shop: Shop) -> None:
    shop.tell()
    policy = {"metric": "p95", "ratio": 1.2, "slack": 0.0}
    shop.did("change-1", source="person", agent="ada", arguments={"model": "models:/digits/2", "policy": policy})
    shop.serve(1, canary=2)
    assert len(shop.tell()) == 1
    shop.serve(2)
    assert shop.tell()[-1] == {"before": V1, "now": V2, "how": "comparison", "by": "ada"}
    with shop.context.store.read() as connection:
        row, trail = intent_store.get(connection, "change-1"), intent_store.load_trail(connection, "change-1")
    why = "\n".join(explain_action(row.action, trail))
    assert "the rule of ada's canary put models:/digits/2 in use: p95<=1.2x held, after 0 of 100" in why


def test_a_version_that_an_agent_put_in_use_is_reported_with_its_action(shop: Shop) -> None:
    shop.did("a1", agent="executor", primitive="upgrade_workflow", arguments={"workflow": "digits"})
    assert shop.tell() == [{"before": {}, "now": V1, "how": "agent", "by": "executor"}]
