"""The agent's strategies, asked for each sample; and the same over recorded samples."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from scanflow.agent.acts import Call
from scanflow.agent.decide import Evaluation, Situation, evaluate
from scanflow.agent.records import Intent, Sample
from scanflow.agent.strategy import Strategy
from scanflow_agents.cycle import Decided
from scanflow_agents.outbox import Letter

__all__ = ["Strategies", "letter_of"]


class Strategies:
    """The strategies of one agent, by the sensors whose samples they decide on."""

    def __init__(self, strategies: Iterable[Strategy], *, app: str, team: str, parameters: Mapping[str, Any]) -> None:
        """Hold them; ``parameters`` are the agent's."""
        self._app, self._team, self._parameters = app, team, parameters
        self._by_sensor: defaultdict[str, list[Strategy]] = defaultdict(list)
        for strategy in strategies:
            self._by_sensor[strategy.sensor].append(strategy)

    def evaluate(self, sample: Sample) -> list[Evaluation]:
        """Return what each strategy of the sample's sensor makes of it, in the order they were declared.

        Decided as of the moment of the sample, so that the same sample is decided on alike at any later time.
        """
        strategies = self._by_sensor.get(sample.sensor)
        if not strategies:
            return []
        situation = Situation(app=self._app, team=self._team, at=sample.at, parameters=self._parameters)
        return [evaluate(strategy, sample, situation) for strategy in strategies]

    def decide(self, sample: Sample) -> Decided:
        """See :class:`~scanflow_agents.cycle.Decider`."""
        letters: list[Letter] = []
        errors: dict[str, str] = {}
        for found in self.evaluate(sample):
            letters += [letter_of(found.strategy, want, at=sample.at) for want in found.wants]
            if found.error is not None and sample.error is None:
                errors[found.strategy] = found.error
        return Decided(letters=tuple(letters), errors=errors)


def letter_of(lane: str, want: Intent | Call, *, at: float) -> Letter:
    """Return what is sent for something that is wanted."""
    if isinstance(want, Intent):
        return Letter(lane=lane, kind="intent", key=want.key, at=at, body=want.model_dump_json())
    body = json.dumps({"agent": want.agent, "sensor": want.sensor, **want.payload()})
    return Letter(lane=lane, kind="call", key=want.key, at=at, body=body)
