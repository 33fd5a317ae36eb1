"""A person's promotion or rejection of a model's version at this server: by the functions of the API's routes.

The service is changed as for any person, by the arbiter; then the registry names the version, and an event is recorded.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final

from scanflow.agent.agent_records import Action, Event
from scanflow.agent.model_changer import ModelChange, ModelChanger
from scanflow.backends.service_change import ServiceChange
from scanflow.backends.service_records import ServiceObserver, ServiceRecord
from scanflow.errors import NotFoundError, ScanflowError, UnavailableError, UsageError
from scanflow.knowledge.knowledge_port import KnowledgeBase
from scanflow_server.arbiter.arbiter_engine import ArbiterEngine
from scanflow_server.bodies import Operation
from scanflow_server.progress_events import get_operation, make_operation_view
from scanflow_server.response_masking import build_text_mask
from scanflow_server.routes import event_routes, intent_routes, service_routes
from scanflow_server.routes.intent_routes import Approval
from scanflow_server.scope import get_intent
from scanflow_server.server_context import ServerContext
from scanflow_server.store import intent_store
from scanflow_server.store.secret_store import cache_maskers
from scanflow_server.token_roles import TokenHolder

_LOOK_S: Final = 0.5


@dataclass(frozen=True)
class OwnModels:
    """What a caller may see and change of services and actions: both parts that a promotion needs of this server."""

    context: ServerContext
    engine: ArbiterEngine
    caller: TokenHolder
    tell_begun: Callable[[str], None]
    """Called with the action that changes a service, as soon as it has begun."""

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
            UnavailableError: it goes on, but this server ends.
        """
        record = self._get_service(name)
        self.caller.check("change", record.team)
        id = service_routes.change(self.context, self.engine, self.caller, name, change).operation
        self.tell_begun(id)
        operation = self._get_state(id)
        while operation.state == "running":
            if self.context.shutdown.is_set():
                raise UnavailableError(
                    f"The server stopped before the change of {name} ended. Once it has, do the same again."
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
            mask, team = build_text_mask(cache_maskers(connection)), self.caller.team
            return [
                action
                for verdict in ("approve", "suggest")
                for action in intent_store.list_actions(
                    connection, state="pending", verdict=verdict, team=team, limit=limit, mask=mask
                )
            ]

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


def begin_decision(
    context: ServerContext,
    engine: ArbiterEngine,
    caller: TokenHolder,
    knowledge: KnowledgeBase,
    decide: Callable[[ModelChanger], ModelChange],
) -> str | None:
    """Promote or reject a version of a caller's team; ``knowledge``: of all teams.

    Return as soon as an action has begun, or an agent's was approved: its id. What else is to be done follows in
    another thread, and what goes wrong there is in the action's trail. None: it is done, without an action.
    """
    begun: Future[str | None] = Future()

    def tell_begun(id: str) -> None:
        if not begun.done():
            begun.set_result(id)

    own = OwnModels(context, engine, caller, tell_begun)
    changer = ModelChanger(knowledge.for_team(caller.team), own, own, person=caller.name)

    def work() -> None:
        try:
            change = decide(changer)
        except Exception as error:  # noqa: BLE001  the edge of a thread: the page, or the action's, says what happened
            if not begun.done():
                begun.set_exception(error)
            elif (id := begun.result()) is not None:
                _note_problem(context, id, error)
        else:
            if not begun.done():
                begun.set_result(change.actions[0] if change.done == "approved" else None)
        finally:
            context.background_reads.forget(("models", caller.team))
            context.store_notifier.notify()

    threading.Thread(target=work, name="model-decision", daemon=True).start()
    return begun.result()


def _note_problem(context: ServerContext, id: str, error: Exception) -> None:
    text = str(error) if isinstance(error, ScanflowError) else f"{type(error).__name__}: {error}"
    with context.store.write() as connection:
        note = f"the registry still names the version before it: {text}"
        intent_store.append_trail(connection, id, context.clock(), note)
