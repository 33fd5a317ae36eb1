"""What the tests of agents share: a context that keeps what it is asked to do, and applications with one agent."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import scanflow as sf
from scanflow.agent.actions import Act, Call, Doing
from scanflow.agent.agent_records import JSON, Sample
from scanflow.agent.context import Context
from scanflow.agent.decide import DecisionContext


@dataclass
class Kept:
    """A caller that keeps what it is asked to do."""

    done: list[Doing] = field(default_factory=list)

    async def call(self, call: Call) -> JSON:
        self.done.append(call)
        return {"sample": "s1"}

    async def act(self, act: Act) -> JSON:
        self.done.append(act)
        return {"verdict": "act"}


def context(**fields: Any) -> Context:
    options: dict[str, Any] = {"app": "shop", "team": "data", "agent": "tracker", "clock": lambda: 100.0}
    return Context(**{**options, **fields})


def sample(value: JSON, **fields: Any) -> Sample:
    options: dict[str, Any] = {"id": "s1", "agent": "tracker", "sensor": "count", "at": 100.0, "cause": "interval:1"}
    return Sample(value=value, **{**options, **fields})


def situation(**parameters: JSON) -> DecisionContext:
    return DecisionContext(app="shop", team="data", at=101.0, parameters=parameters)


def shop(folder: Path, *, modules: dict[str, str], **fields: Any) -> sf.Application:
    for name, text in modules.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    options: dict[str, Any] = {"name": "tracker", "modules": list(modules)}
    return sf.Application(name="shop", team="data", app_dir=folder, agents=[sf.Agent(**{**options, **fields})])
