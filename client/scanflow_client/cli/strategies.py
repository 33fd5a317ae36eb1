"""Commands on what agents' code decides: strategies, replay."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from scanflow_client.cli.app import JsonOption, app, print_json, server, table

__all__: list[str] = []

DIFFERS = 1
"""The exit code of ``replay`` where the rules of today decide otherwise."""

SHOWN = 200
"""So many of the last moments of a timeline are printed."""


@app.command()
def strategies(
    target: Annotated[
        str | None,
        typer.Argument(metavar="[APP.py[:AGENT] | primitives]", help="Whose; or all that agents can do."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the strategies of an application's agents: when, if, then; or the primitives that they are made of."""
    from scanflow_client.agent_words import primitive_rows, strategy_rows

    if target == "primitives":
        from scanflow.agent.primitives import CATALOGUE

        if as_json:
            print_json(CATALOGUE)
        else:
            table(("primitive", "layer", "kind", "parameters", "what it does"), primitive_rows(CATALOGUE))
        return
    from scanflow_client.agent_code import strategies_of

    application, told = strategies_of(target)
    if as_json:
        typer.echo(json.dumps(told, indent=2))
    elif told:
        table(("agent", "strategy", "when", "if", "then", "autonomy", "cool-down", "budget"), strategy_rows(told))
    else:
        typer.echo(f"The agents of {application!r} declare no strategy: they sense, and do nothing.")


@app.command()
def replay(
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="Whose samples: tracker, or mnist:tracker.")],
    file: Annotated[
        str | None, typer.Argument(metavar="[APP.py]", help="Its strategies as they are now. Default: app.py here.")
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="Samples from 2h ago on, or 2026-01-31T06:00.")
    ] = None,
    last: Annotated[int | None, typer.Option("--last", metavar="N", min=1, help="Only the last N samples.")] = None,
    trace: Annotated[
        Path | None, typer.Option("--trace", metavar="FILE", help="A saved trace, in place of the agent's journal.")
    ] = None,
    save: Annotated[Path | None, typer.Option("--save", metavar="FILE", help="Keep the trace, for --trace.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Ask an agent's strategies again over the samples it recorded. Nothing is done; exit code 1: they differ."""
    import time

    from scanflow.agent.replaying import difference, trace_of
    from scanflow_client import agent_code, replay_words

    earliest = None if since is None else replay_words.moment_of(since, now=time.time())
    of, name, entries = _entries(agent, trace)
    found = trace_of(entries).cut(since=earliest, last=last)
    today = agent_code.replay(file, name, found.samples)
    _check_app(of, today.app, name, file)
    if save is not None:
        replay_words.save_entries(save, today.app, name, entries, found)
    differences = difference(found.moments, today.moments)
    if as_json:
        typer.echo(json.dumps(replay_words.told(today.app, name, found, today.moments, differences), indent=2))
    else:
        _print(name, replay_words, found, today, differences)
    if differences:
        raise typer.Exit(DIFFERS)


def _entries(agent: str, trace: Path | None) -> tuple[str | None, str, list[dict[str, Any]]]:
    """Return the application and the name of the agent that is meant, and its journal."""
    if trace is not None:
        from scanflow_client.replay_words import read_entries

        app_, _, name = agent.replace("/", ":").rpartition(":")
        of, entries = read_entries(trace)
        return app_ or of, name, entries
    from scanflow_client.faces import entries_of, known, one_of

    one = one_of(known(server(), agent))
    return one.app, one.name, list(entries_of(one, also=". Or replay a saved trace: --trace FILE"))


def _check_app(recorded: str | None, made: str, agent: str, file: str | None) -> None:
    """Refuse to compare what one application's agent decided with another's strategies."""
    from scanflow.errors import InvalidError

    if recorded not in {None, made}:
        raise InvalidError(
            f"What is recorded is of {recorded}:{agent}, and {file or 'the file here'} makes the application {made!r}. "
            f"Name the file of {recorded!r}: scanflow replay {agent} FILE"
        )


def _print(name: str, words: Any, found: Any, today: Any, differences: Any) -> None:
    if not found.samples:
        typer.echo(f"No such sample is recorded. See what is: scanflow agents {today.app}:{name} --journal")
        return
    rows = words.moment_rows(today.moments, found)
    if len(rows) > SHOWN:
        typer.echo(f"The last {SHOWN} of {len(rows):,} moments; all of them: --json")
    if rows:
        table(words.HEADS, rows[-SHOWN:])
        typer.echo("")
    if differences:
        table(("", "when", "strategy", "was", "is now"), words.difference_rows(differences))
        typer.echo("")
    typer.echo(words.conclusion(len(found.samples), today.strategies, differences))
