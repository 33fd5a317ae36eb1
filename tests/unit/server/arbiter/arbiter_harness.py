"""A harness for the engine: a clock that is moved by hand, and targets that only remember what was done to them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

from scanflow.agent.agent_records import Intent, PrimitiveCall
from scanflow.agent.primitive_context import PrimitiveResult
from scanflow.errors import UnavailableError
from scanflow_server.arbiter.arbiter_engine import ArbiterEngine
from scanflow_server.arbiter.intent_service import CREATED_FIELD
from scanflow_server.store.base import Store
from tests.unit.server.arbiter.intent_builders import permit


class KilledError(BaseException):
    """The process is killed at this instant: nothing catches it, and nothing is written down any more."""


class ArbiterHarness:
    """Services with a number of instances each, and everything that was done to them."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.now = 1000.0
        self.replicas: dict[str, int] = {"serve": 2, "other": 1}
        self.done: list[tuple[str, dict[str, Any]]] = []
        self.metrics: dict[str, float] = {}
        self.since: float | None = None
        self.living: set[str] = set()
        self.kill: str | None = None
        self.fail: Exception | None = None

    def do(self, *wanted: Intent) -> None:
        """Decide on intents, and do all that is due."""
        for intent in wanted:
            self.engine.submit(intent)
        self.engine.settle()

    @cached_property
    def engine(self) -> ArbiterEngine:
        return self.restart()

    def restart(self, **changes: Any) -> ArbiterEngine:
        """Return another engine on this harness's store, as a server that starts makes one."""
        self.engine = ArbiterEngine(
            self.store,
            self.perform,
            look=self.look,
            limits=lambda _, intent: permit(intent),
            measure=lambda intent, metric: self.measure(intent.app, metric),
            alive=lambda _app, agent: agent in self.living,
            clock=lambda: self.now,
            **changes,
        )
        return self.engine

    def look(self, intent: Intent) -> dict[str, Any]:
        name = intent.target.partition("/")[2]
        seen = {"replicas": self.replicas[name]} if name in self.replicas else {}
        return seen if self.since is None else {**seen, CREATED_FIELD: self.since}

    def measure(self, _app: str, metric: str) -> float | None:
        return self.metrics.get(metric)

    def perform(
        self,
        _intent: Intent,
        call: PrimitiveCall,
        key: str,
        noted: PrimitiveCall | None,
        note: Callable[[PrimitiveCall], None],
    ) -> PrimitiveResult:
        if call.primitive == "run_workflow":
            self.done.append((key, dict(call.arguments)))
            return PrimitiveResult({"run": key})
        name, count = str(call.arguments["workflow"]), call.arguments["instances"]
        assert isinstance(count, int)
        if self.kill == "before":
            raise KilledError
        if self.fail is not None:
            raise self.fail
        inverse = noted or PrimitiveCall(
            primitive=call.primitive, arguments={"workflow": name, "instances": self.replicas[name]}
        )
        if noted is None:
            note(inverse)
        if self.kill == "noted":
            raise KilledError
        if self.replicas[name] != count:
            self.done.append((key, dict(call.arguments)))
            self.replicas[name] = count
        if self.kill == "after":
            raise KilledError
        return PrimitiveResult({"instances": count}, inverse)

    def does_not_answer(self) -> None:
        self.fail = UnavailableError("The tracker does not answer. Try again.")
