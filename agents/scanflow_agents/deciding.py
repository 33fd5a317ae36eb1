"""The agent's strategies, asked for each sample as it comes, and what is sent for what they want."""

from __future__ import annotations

import json

from scanflow.agent.acts import Call
from scanflow.agent.decide import Evaluator
from scanflow.agent.records import Intent, Sample
from scanflow_agents.cycle import Decided
from scanflow_agents.outbox import Letter

__all__ = ["Strategies", "letter_of"]


class Strategies(Evaluator):
    """The strategies of one agent, and letters of what they want."""

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
