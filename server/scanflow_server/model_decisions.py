"""A person's promotion or rejection of a model's version at this server: by the functions of the API's routes.

The service is changed as for any person, by the arbiter; then the registry names the version, and an event is recorded.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from scanflow.agent.agent_records import Action, Event
from scanflow.agent.model_changer import ModelChanger
from scanflow.backends.service_change import ServiceChange
from scanflow.backends.service_records import ServiceObserver, ServiceRecord
from scanflow.errors import NotFoundError, UnavailableError, UsageError
from scanflow.knowledge.knowledge_port import KnowledgeBase
from scanflow_server.arbiter.arbiter_engine import ArbiterEngine
from scanflow_server.bodies import Operation
from scanflow_server.progress_events import get_operation, make_operation_view
from scanflow_server.response_masking import mask_action
from scanflow_server.routes import event_routes, intent_routes, service_routes
from scanflow_server.routes.intent_routes import Approval
from scanflow_server.scope import get_intent
from scanflow_server.server_context import ServerContext
from scanflow_server.store import intent_store
from scanflow_server.store.secret_store import cache_maskers
from scanflow_server.token_roles import TokenHolder

WAIT_S: Final = 120.0
"""How long a person waits for the change of a service."""

_LOOK_S: Final = 0.5


@dataclass(frozen=True)
class OwnModels:
    """What a caller may see and change of services and actions: both parts that a promotion needs of this server."""

    context: ServerContext
    engine: ArbiterEngine
    caller: TokenHolder

    def services(self) -> list[ServiceRecord]:
        return service_routes.services(self.context, self.caller)

    def change(
        self,
        name: str,
        change: ServiceChange,
        *,
        observe: ServiceObserver = lambda _: None,  # noqa: ARG002  nobody watches it here; the service's page does
    ) -> ServiceRecord:
        """Change a service and wait for it, as its driver does it.

        Raises:
            UsageError: it failed, or was refused.
            UnavailableError: it is not done in time, and goes on.
        """
        record = self._get_service(name)
        self.caller.check("change", record.team)
        id = service_routes.change(self.context, self.engine, self.caller, name, change).operation
        ends, operation = time.monotonic() + WAIT_S, self._get_state(id)
        while operation.state == "running":
            if time.monotonic() > ends or self.context.shutdown.is_set():
                raise UnavailableError(
                    f"The change of {name} goes on, and the registry still names the version before it. Once it has "
                    "ended, do the same again."
                )
            self.context.store_notifier.wait(self.context.store_notifier.changes, _LOOK_S)
            operation = self._get_state(id)
        if operation.state == "failed":
            raise UsageError(str((operation.problem or {}).get("detail", f"The change of {name} failed.")))
        return self._get_service(name)

    def _get_state(self, id: str) -> Operation:
        return make_operation_view(self.context, get_operation(self.context, id))

    def _get_service(self, name: str) -> ServiceRecord:
        record = next((record for record in self.services() if record.name == name), None)
        if record is None:
            raise NotFoundError(f"There is no service {name!r}. List the services: scanflow services")
        return record

    def approvals(self, *, limit: int) -> list[Action]:
        with self.context.store.read() as connection:
            maskers = cache_maskers(connection)
            waiting = [
                action
                for verdict in ("approve", "suggest")
                for action in intent_store.list_actions(
                    connection, state="pending", verdict=verdict, team=self.caller.team, limit=limit
                )
            ]
            return [mask_action(action, maskers)[0] for action in waiting]

    def approve(self, action: str, /, *, reason: str = "") -> Action:
        row = get_intent(self.engine, self.caller, action)
        self.caller.check("approve", row.intent.team)
        return intent_routes.approve(self.context, self.engine, self.caller, row, Approval(reason=reason))

    def refuse(self, action: str, /, *, reason: str = "") -> Action:
        row = get_intent(self.engine, self.caller, action)
        self.caller.check("approve", row.intent.team)
        return intent_routes.refuse(self.context, self.engine, self.caller, row, Approval(reason=reason))

    def tell(self, events: Sequence[Event], /) -> list[Event]:
        return event_routes.tell(self.context, self.caller, list(events))


def make_changer(
    context: ServerContext, engine: ArbiterEngine, caller: TokenHolder, knowledge: KnowledgeBase
) -> ModelChanger:
    """Return what promotes and rejects a caller's models; ``knowledge``: of all teams."""
    own = OwnModels(context, engine, caller)
    return ModelChanger(knowledge.for_team(caller.team), own, own, person=caller.name)
