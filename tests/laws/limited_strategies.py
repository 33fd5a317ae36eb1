"""Strategies for the law of limits, the simulation that they act on, and what may be done there at most.

What is done is written down by the functions and stand-ins here, whoever does it. :func:`explain_refusal` is the
oracle: it knows the limits and what was done, and nothing of arbiter, agent and journal.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from scanflow.agent import Strategy, call, primitives
from scanflow.agent.agent_records import Action, Intent, PrimitiveCall, Sample
from scanflow.agent.decide import Evaluator
from scanflow.agent.primitive_context import PrimitiveResult
from scanflow.agent.replay import build_trace, compare_moments, replay
from scanflow.agent.strategy_limits import describe_limits
from scanflow_agents.host.call_limits import MemoryActedStore
from scanflow_agents.host.strategy_runner import Strategies
from scanflow_server.arbiter.arbiter_engine import ArbiterEngine
from scanflow_server.store import event_store, intent_store
from scanflow_server.store.base import Store

ACTED: list[str] = []
"""What the functions below did, as targets."""


class Notifier:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self, _found: Any) -> None:
        self.count += 1
        ACTED.append("function/Notifier")


def write(_found: Any, target: str = "function/write") -> None:
    ACTED.append(target)


def write_deeply(value: Any) -> None:
    _note("function/write_deeply", value)


def _note(target: str, _found: Any) -> None:
    ACTED.append(target)


def write_and_train(_found: Any) -> Any:
    ACTED.append("function/write_and_train")
    return primitives.run_workflow("training")


def write_and_call(_found: Any) -> Any:
    ACTED.append("function/write_and_call")
    return [call("checker", "look")]


def choose_nothing(_found: Any) -> None:
    return None


def choose_both(_found: Any) -> Any:
    return [primitives.run_workflow("training"), call("checker", "look")]


THEN: dict[str, tuple[Any, tuple[str, ...]]] = {
    "primitive": (primitives.run_workflow("training"), ("workflow/training",)),
    "primitive on a service": (primitives.update_workflow_replica("serve", instances=3), ("service/serve",)),
    "call": (call("checker", "look"), ("agent/checker/look",)),
    "function that chooses": (lambda _found: primitives.run_workflow("training"), ("workflow/training",)),
    "function that chooses a call": (
        lambda sample_value: call("checker", "look", sample_value),
        ("agent/checker/look",),
    ),
    "function that chooses both": (choose_both, ("workflow/training", "agent/checker/look")),
    "function that chooses nothing": (choose_nothing, ()),
    "function that acts": (write, ("function/write",)),
    "function that acts in another": (write_deeply, ("function/write_deeply",)),
    "lambda that acts": (lambda _found: ACTED.append("function/<lambda>"), ("function/<lambda>",)),
    "partial that acts": (functools.partial(write, target="function/partial"), ("function/partial",)),
    "object that acts": (Notifier(), ("function/Notifier",)),
    "function that acts and trains": (write_and_train, ("function/write_and_train", "workflow/training")),
    "function that acts and calls": (write_and_call, ("function/write_and_call", "agent/checker/look")),
}
"""What ``then`` may be, with the targets that it acts on where nothing limits it."""


@dataclass(frozen=True)
class Limited:
    """A strategy as the oracle knows it."""

    name: str
    then: tuple[str, ...]
    autonomy: Literal["observe", "suggest", "approve", "auto"]
    cool_down: float
    budget: int | None
    window: float
    priority: int

    def build(self) -> Strategy:
        return Strategy(
            name=self.name,
            when="count",
            if_=lambda value: value > 0,
            then=[THEN[form][0] for form in self.then],
            autonomy=self.autonomy,
            cool_down=self.cool_down,
            budget=self.budget,
            budget_window=self.window,
            priority=self.priority,
        )


@dataclass(frozen=True)
class Done:
    at: float
    strategy: str
    target: str


def explain_refusal(
    limited: Limited, target: str, now: float, done: Sequence[Done], owner: Limited | None, unanswered: int = 0
) -> str | None:
    """Return why a strategy may not act on a target now; None: it may.

    ``unanswered``: its intents on the same sample that will be refused. The agent does not know that yet, so that they
    count for what it decides on itself.
    """
    own = [act for act in done if act.strategy == limited.name]
    if limited.autonomy != "auto":
        return "autonomy"
    if any(act.target == target and now - act.at < limited.cool_down for act in own):
        return "cool-down"
    used = sum(now - act.at < limited.window for act in own)
    if not target.startswith(("workflow/", "service/")):
        used += unanswered
    if limited.budget is not None and used >= limited.budget:
        return "budget"
    if owner is not None and owner.name != limited.name:
        hands_on = 0 < limited.priority == owner.priority
        return None if limited.priority > owner.priority or hands_on else "priority"
    return None


@dataclass
class Simulation:
    """One agent and one server on a clock that is moved by hand."""

    store: Store
    app: str
    strategies: Sequence[Limited]
    now: float = 1_790_000_000.0
    done: list[Done] = field(default_factory=list)
    journal: list[dict[str, Any]] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    performed: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.built = [limited.build() for limited in self.strategies]
        self.acted = MemoryActedStore()
        limits = {strategy.name: describe_limits(strategy, {}) for strategy in self.built}
        self.engine = ArbiterEngine(
            self.store,
            self._perform,
            look=lambda _intent: {},
            limits=lambda _connection, intent: limits[intent.strategy],
            alive=lambda _app, _agent: True,
            clock=lambda: self.now,
        )
        self.start()

    def start(self) -> None:
        """Start the agent, again."""
        self.agent = Strategies(self.built, app=self.app, team=self.app, parameters={}, store=self.acted)

    def _perform(
        self, intent: Intent, _call: PrimitiveCall, _key: str, _inverse: Any, _note: Callable[[PrimitiveCall], None]
    ) -> PrimitiveResult:
        self.performed.append(intent.target)
        return PrimitiveResult({})

    def fire(self, value: int) -> list[Done]:
        """Have the sensor fire, carry out what is let through, and return what was done."""
        number = len(self.samples) + 1
        sample = Sample(
            id=f"s{number}", agent="tracker", sensor="count", at=self.now, value=value, cause=f"interval:{number}"
        )
        self.samples.append(sample)
        self._note("sample", "count", sample.model_dump(mode="json"))
        ACTED.clear()
        self.performed.clear()
        decisions = self.agent.decide(sample)
        assert not decisions.errors
        done = []
        for kind, strategy, text in decisions.notes or ():
            body = json.loads(text)
            self._note(kind, strategy, body)
            if kind == "intent":
                done += self._submit(Intent.model_validate(body))
            elif kind == "call":
                done.append(Done(self.now, strategy, f"agent/{body['agent']}/{body['sensor']}"))
            elif kind == "function":
                done.append(Done(self.now, strategy, ACTED.pop(0)))
        assert not ACTED, "a function acted without an entry in the journal"
        self.done += done
        return done

    def _submit(self, intent: Intent) -> list[Done]:
        decision = self.engine.submit(intent)
        self.performed.clear()
        self.engine.settle()
        answer = decision.model_dump(mode="json")
        self._note("decision", intent.strategy, {"key": intent.key, "answer": answer})
        if decision.verdict in {"refuse", "observe", "suggest"}:
            self.acted.delete_acted(intent.strategy, intent.key)
        return [Done(self.now, intent.strategy, target) for target in self.performed]

    def _note(self, kind: str, subject: str, body: Any) -> None:
        self.journal.append({"kind": kind, "subject": subject, "body": body})

    def list_reasons(self, sample: Sample) -> dict[str, int]:
        """Return how many reasons the journal has for what was not done on a sample, by strategy."""
        reasons: dict[str, int] = {}
        at = next(at for at, entry in enumerate(self.journal) if entry["body"].get("id") == sample.id)
        for entry in self.journal[at + 1 :]:
            if entry["kind"] == "sample":
                break
            answer = entry["body"].get("answer", {})
            is_reason = entry["kind"] == "withheld" or answer.get("verdict") not in {None, "act"}
            reasons[entry["subject"]] = reasons.get(entry["subject"], 0) + is_reason
        return reasons

    def list_actions(self) -> list[Action]:
        with self.store.read() as connection:
            return intent_store.list_actions(connection, limit=10_000, app=self.app)[::-1]

    def list_decisions(self) -> list[tuple[str, str, str, str]]:
        """Return what people were told of intents: strategy, primitive, verdict and the beginning of the reason."""
        with self.store.read() as connection:
            listed = [event for event in event_store.list_after(connection, 0, limit=100_000) if event.app == self.app]
        intents = [
            {name: str(value) for name, value in event.data.items()} for event in listed if event.type == "intent"
        ]
        return [(data["strategy"], data["primitive"], data["verdict"], data["reason"][:12]) for data in intents]

    def replay(self) -> tuple[list[str], list[str]]:
        """Replay the journal; return what acted, and the differences from what was recorded."""
        ACTED.clear()
        trace = build_trace(self.journal)
        evaluator = Evaluator(self.built, app=self.app, team=self.app, parameters={})
        moments = replay(evaluator, trace.samples)
        return [*ACTED], [str(difference) for difference in compare_moments(trace.moments, moments)]
