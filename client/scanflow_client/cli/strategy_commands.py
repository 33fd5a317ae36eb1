"""Commands on the decisions of agents' code: strategies, replay."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from scanflow_client.cli.command_options import JsonOption, open_client
from scanflow_client.cli.command_output import respond
from scanflow_client.cli.exit_codes import FAILED


def strategies(
    target: Annotated[
        str | None,
        Argument(metavar="[APP.py[:AGENT] | primitives]", help="A file, or one agent in it; or the word primitives."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the strategies of agents (when, if, then), or primitives.

    Examples:
        scanflow strategies app.py
        scanflow strategies primitives
    """
    from scanflow_client.formatting.agent_text import format_primitives, format_strategies

    if target == "primitives":
        from scanflow.agent.primitives import catalogue

        rows = catalogue()
        respond(rows, as_json, lambda: [format_primitives(rows)])
        return
    from scanflow_client.agent_replay import list_strategies

    application, listed = list_strategies(target)
    respond(listed, as_json, lambda: format_strategies(listed, application=application))


def replay(
    agent: Annotated[str, Argument(metavar="AGENT", help="The agent: tracker, or mnist:tracker.")],
    file: Annotated[
        str | None, Argument(metavar="[APP.py]", help="The file with the current strategies. Default: app.py here.")
    ] = None,
    since: Annotated[
        str | None, Option("--since", metavar="TIME", help="Only samples of the last 2h, or since 2026-01-31T06:00.")
    ] = None,
    last: Annotated[int | None, Option("--last", metavar="N", min=1, help="Only the last N samples.")] = None,
    trace: Annotated[
        Path | None, Option("--trace", metavar="FILE", help="A saved trace, in place of the agent's journal.")
    ] = None,
    save: Annotated[
        Path | None, Option("--save", metavar="FILE", help="Save the trace to a file, for --trace.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Evaluate an agent's strategies again on recorded samples. No action is taken; exit code 1: requests differ.

    Examples:
        scanflow replay tracker app.py --last 50
        scanflow replay mnist:tracker --since 2h --save trace.json
    """
    from scanflow_client.formatting.agent_text import format_replay

    result = open_client().replay(agent, file, since=since, last=last, trace=trace)
    if save is not None:
        result.save(save)
    nothing = [
        (
            f"No matching sample is recorded. List the recorded samples: scanflow agents {result.app}:{result.agent} "
            "--journal"
        )
    ]
    respond(result.as_json(), as_json, lambda: format_replay(result) if result.trace.samples else nothing)
    if result.differences:
        raise typer.Exit(FAILED.code)
