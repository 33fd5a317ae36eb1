"""What the strategies of an agent request on a sample, within their limits."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from scanflow.agent.actions import Call
from scanflow.agent.agent_records import Intent, Sample
from scanflow.agent.decide import Evaluator, FunctionCall
from scanflow.agent.error_text import format_error
from scanflow.agent.formatting import describe_action
from scanflow.agent.strategy import Strategy
from scanflow_agents.host.call_limits import ActedStore, LocalLimits, MemoryActedStore, Withheld
from scanflow_agents.host.control_loop import Decisions
from scanflow_agents.host.outbox import Delivery


class Strategies(Evaluator):
    def __init__(
        self,
        strategies: Sequence[Strategy],
        *,
        app: str,
        team: str,
        parameters: Mapping[str, Any],
        store: ActedStore | None = None,
    ) -> None:
        """``store``: where it is kept what was done, for the limits. None: in memory."""
        super().__init__(strategies, app=app, team=team, parameters=parameters)
        self._limits = LocalLimits(strategies, MemoryActedStore() if store is None else store)

    def decide(self, sample: Sample) -> Decisions:
        deliveries: list[Delivery] = []
        errors: dict[str, str] = {}
        withheld: list[Withheld] = []
        notes: list[tuple[str, str, str]] = []
        for evaluation in self.evaluate(sample):
            strategy = evaluation.strategy
            if evaluation.error is not None and sample.error is None:
                errors[strategy] = evaluation.error
            waiting = deque(evaluation.actions)
            while waiting:
                action = waiting.popleft()
                objection = self._limits.withhold(strategy, action, sample.at)
                if objection is not None:
                    withheld.append(objection)
                    body = {name: getattr(objection, name) for name in ("requests", "key", "limit", "reason")}
                    notes.append(("withheld", strategy, json.dumps(body)))
                elif isinstance(action, FunctionCall):
                    requested, error = _run_function(strategy, action)
                    if error is not None:
                        errors[strategy] = error
                    body = {"requests": describe_action(action), "key": action.key, "requested": len(requested)}
                    notes.append(("function", strategy, json.dumps(body)))
                    waiting.extendleft(reversed(requested))
                else:
                    action = self._limits.bound(strategy, action, sample.at) if isinstance(action, Intent) else action
                    delivery = Delivery.build(strategy, action, at=sample.at)
                    deliveries.append(delivery)
                    notes.append((delivery.kind, strategy, delivery.body))
        return Decisions(deliveries=tuple(deliveries), errors=errors, withheld=tuple(withheld), notes=tuple(notes))


def _run_function(strategy: str, function: FunctionCall) -> tuple[tuple[Intent | Call, ...], str | None]:
    """Call a function with effects, and return what it requests, and its error."""
    try:
        return function.run(), None
    except Exception as error:  # noqa: BLE001  whatever an author's function raises is told
        return (), f"Strategy {strategy!r}: {format_error(error)}"
