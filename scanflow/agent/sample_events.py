"""The samples of agents' sensors in the server's events. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress

from pydantic import ValidationError

from scanflow.agent.agent_records import Event, Sample


def parse_samples(agent: str, events: Iterable[Event]) -> Iterator[Sample]:
    """Yield the samples in events of the type ``sample`` that an agent has published."""
    for event in events:
        data = event.data
        fields = {name: data.get(name) for name in ("sensor", "cause", "value", "error")}
        with suppress(ValidationError):  # somebody else's event of that name
            yield Sample.model_validate({**fields, "id": data.get("sample"), "agent": agent, "at": event.at})
