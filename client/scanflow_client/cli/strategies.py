"""Commands on the decisions of agents' code: strategies, replay."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from scanflow.errors import InvalidError
from scanflow_client.cli.options import JsonOption, server
from scanflow_client.cli.output import respond


def strategies(
    target: Annotated[
        str | None,
        Argument(metavar="[APP.py[:AGENT] | primitives]", help="A file, or one agent of it; or all primitives."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the strategies of an application's agents (when, if, then), or the primitives they can use."""
    from scanflow_client.formatting.agents import primitives_table, strategies_table

    if target == "primitives":
        from scanflow.agent.primitives import catalogue

        rows = catalogue()
        respond(rows, as_json, lambda: [primitives_table(rows)])
        return
    from scanflow_client.replay import strategies_of

    application, found = strategies_of(target)
    nothing = f"The agents of {application!r} declare no strategy: they only sense."
    respond(found, as_json, lambda: [strategies_table(found) if found else nothing])


def replay(
    agent: Annotated[str, Argument(metavar="AGENT", help="The agent: tracker, or mnist:tracker.")],
    file: Annotated[
        str | None, Argument(metavar="[APP.py]", help="Its strategies as they are now. Default: app.py here.")
    ] = None,
    since: Annotated[
        str | None, Option("--since", metavar="TIME", help="Samples from 2h ago on, or 2026-01-31T06:00.")
    ] = None,
    last: Annotated[int | None, Option("--last", metavar="N", min=1, help="Only the last N samples.")] = None,
    trace: Annotated[
        Path | None, Option("--trace", metavar="FILE", help="A saved trace, in place of the agent's journal.")
    ] = None,
    save: Annotated[Path | None, Option("--save", metavar="FILE", help="Keep the trace, for --trace.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Evaluate an agent's strategies again on recorded samples. Nothing is done; exit code 1: decisions differ."""
    import time

    from scanflow.agent.replay import difference, trace_of
    from scanflow_client import replay as code
    from scanflow_client.formatting.agents import replay_json, replay_screen

    earliest = None if since is None else code.moment_of(since, now=time.time())
    recorded, name, entries = _entries(agent, trace)
    found = trace_of(entries).cut(since=earliest, last=last)
    today = code.replay(file, name, found.samples)
    if recorded not in {None, today.app}:
        raise InvalidError(
            f"The samples are of {recorded}:{name}, and {file or 'the file here'} makes the application {today.app!r}. "
            f"Name the file of {recorded!r}: scanflow replay {name} FILE"
        )
    if save is not None:
        code.save_trace(save, today.app, name, entries, found)
    differences = difference(found.moments, today.moments)
    nothing = [f"No such sample is recorded. See what is: scanflow agents {today.app}:{name} --journal"]
    respond(
        replay_json(today.app, name, found, today.moments, differences),
        as_json,
        lambda: replay_screen(found, today.moments, today.strategies, differences) if found.samples else nothing,
    )
    if differences:
        raise typer.Exit(1)


def _entries(agent: str, trace: Path | None) -> tuple[str | None, str, list[dict[str, Any]]]:
    """Return the application and the name of an agent, and the entries of its journal or of a saved trace."""
    if trace is not None:
        from scanflow_client.replay import read_trace

        app, _, name = agent.replace("/", ":").rpartition(":")
        of, entries = read_trace(trace)
        return app or of, name, entries
    from scanflow_client.agent_client import entries_of, known, one_of

    one = one_of(known(server(), agent))
    return one.app, one.name, list(entries_of(one, also=". Or replay a saved trace: --trace FILE"))
