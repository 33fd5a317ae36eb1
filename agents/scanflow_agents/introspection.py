"""Introspect agents' code, in a process of its own that hosts no agent.

``python -m scanflow_agents strategies FILE[:AGENT]`` lists their strategies; ``python -m scanflow_agents replay FILE
AGENT`` reads recorded samples (a JSON list) and evaluates the strategies on them. The result is JSON on standard
output, or a problem document with exit status 1; output of the agents' code goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from pydantic import TypeAdapter, ValidationError

from scanflow.agent.agent_records import Sample
from scanflow.errors import InvalidError, ScanflowError, UsageError
from scanflow.http.problems import build_problem

if TYPE_CHECKING:
    from collections.abc import Iterator


_SAMPLES: TypeAdapter[list[Sample]] = TypeAdapter(list[Sample])


def main(words: Sequence[str]) -> int:
    with _reserve_stdout() as answer:
        try:
            command = COMMANDS.get(words[0]) if words else None
            if command is None:
                raise UsageError(f"The command must be {' or '.join(COMMANDS)}, not {words[:1]}.")
            json.dump(command(words[1:]), answer)
        except ScanflowError as error:
            json.dump(build_problem(error)[1], answer)
            return 1
        except KeyboardInterrupt:
            return 130
    return 0


def _list_strategies(words: Sequence[str]) -> dict[str, Any]:
    from scanflow.agent.formatting import build_strategy_documents
    from scanflow.agent.strategy_limits import describe_unknown_targets
    from scanflow.agent.targets import select_agents
    from scanflow_agents.templates import load_declared

    application, _, agents = select_agents(words[0] if words else None)
    declared = [(agent, load_declared(application, agent)) for agent in agents]
    documents = [
        document
        for agent, strategies in declared
        for document in build_strategy_documents(application.name, agent.name, strategies, agent.parameters)
    ]
    unknown = [
        text
        for agent, strategies in declared
        for text in describe_unknown_targets(application, agent.name, strategies.strategies, agent.parameters)
    ]
    return {"app": application.name, "strategies": documents, "unknown": unknown}


def _replay(words: Sequence[str]) -> dict[str, Any]:
    from scanflow.agent.decide import Evaluator
    from scanflow.agent.replay import replay
    from scanflow.agent.targets import select_agents
    from scanflow_agents.effect_guard import refuse_effects
    from scanflow_agents.templates import load_declared

    file, name = words
    try:
        samples = _SAMPLES.validate_json(sys.stdin.buffer.read())
    except ValidationError as error:
        raise InvalidError(f"The recorded samples cannot be read: {error.errors()[0]['msg']}.") from error
    application, _, (agent,) = select_agents(f"{file}:{name}")
    declared = load_declared(application, agent)
    evaluator = Evaluator(declared.strategies, app=application.name, team=application.team, parameters=agent.parameters)
    refuse_effects()
    moments = [moment.model_dump(mode="json") for moment in replay(evaluator, samples)]
    strategies = [strategy.name for strategy in declared.strategies]
    return {"app": application.name, "strategies": strategies, "moments": moments}


COMMANDS: Mapping[str, Callable[[Sequence[str]], dict[str, Any]]] = {"strategies": _list_strategies, "replay": _replay}


@contextmanager
def _reserve_stdout() -> Iterator[TextIO]:
    """Reserve standard output for the result; other output goes to standard error."""
    sys.stdout.flush()
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answer:
        os.dup2(2, 1)
        yield answer
