"""The agent's strategies, asked for each sample as it comes, and what is sent for what they want."""

from __future__ import annotations

import json

from scanflow.agent.actions import Call
from scanflow.agent.decide import Evaluator
from scanflow.agent.records import Intent, Sample
from scanflow_agents.host.control_loop import Decisions
from scanflow_agents.host.outbox import Delivery


class Strategies(Evaluator):
    def decide(self, sample: Sample) -> Decisions:
        deliveries: list[Delivery] = []
        errors: dict[str, str] = {}
        for found in self.evaluate(sample):
            deliveries += [delivery_of(found.strategy, want, at=sample.at) for want in found.wants]
            if found.error is not None and sample.error is None:
                errors[found.strategy] = found.error
        return Decisions(deliveries=tuple(deliveries), errors=errors)


def delivery_of(queue: str, want: Intent | Call, *, at: float) -> Delivery:
    if isinstance(want, Intent):
        return Delivery(queue=queue, kind="intent", key=want.key, at=at, body=want.model_dump_json())
    body = json.dumps({"agent": want.agent, "sensor": want.sensor, **want.payload()})
    return Delivery(queue=queue, kind="call", key=want.key, at=at, body=body)
