"""Commands on agents and on what they want: agents, why, approve, labels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scanflow_client.cli.app import JsonOption, app, print_json, server, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scanflow.agent.records import Action
    from scanflow.transport import Server
    from scanflow_client.agent_words import AgentTold

__all__: list[str] = []

AGENT_HEADS = ("agent", "application", "state", "since", "restarts", "sensors", "last firing", "missed", "errors")
LimitOption = Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="How many at most.")]


@app.command()
def agents(
    target: Annotated[
        str | None,
        typer.Argument(metavar="[APP[:AGENT]]", help="Which: an application's, or one. With --start, a file."),
    ] = None,
    start: Annotated[bool, typer.Option("--start", help="Start the agents of an application: --start app.py.")] = False,
    stop: Annotated[bool, typer.Option("--stop", help="Stop them: --stop mnist, or --stop mnist:tracker.")] = False,
    journal: Annotated[bool, typer.Option("--journal", help="Print what one agent sensed, wanted and missed.")] = False,
    limit: LimitOption = 100,
    as_json: JsonOption = False,
) -> None:
    """List agents, how their sensors fare and what they missed; start them, stop them, or read a journal."""
    from scanflow.errors import InvalidError

    if start + stop + journal > 1:
        raise InvalidError("--start, --stop and --journal are three different wishes. Leave two out.")
    if start:
        _start(target, as_json)
        return
    if target is None and (stop or journal):
        raise InvalidError("Say which agent: scanflow agents APP:AGENT. See which there are: scanflow agents")
    from scanflow_client.faces import known, with_sensors

    where = server()
    found = known(where, target)
    if journal:
        _print_journal(found, limit, as_json)
    elif stop:
        from scanflow.transport import path_of
        from scanflow_client.agent_words import AgentTold

        ended = [AgentTold.model_validate(where.delete(path_of("agents", one.app, one.name))) for one in found]
        _print_wished(ended, as_json)
    else:
        _list(with_sensors(found), as_json, detailed=target is not None)


@app.command()
def why(
    action: Annotated[
        str | None, typer.Argument(metavar="[ACTION]", help="Its id; @latest is the newest. Default: list them.")
    ] = None,
    limit: LimitOption = 20,
    as_json: JsonOption = False,
) -> None:
    """Say why something was done, or was not: from the sample over the rule and the decision to the effect."""
    from scanflow.transport import path_of
    from scanflow_client.agent_words import action_rows

    where = server()
    if action is not None:
        found = where.get(path_of("intents", _id(where, action), "why"))
        typer.echo(json.dumps(found, indent=2) if as_json else "\n".join(found["lines"]))
        return
    newest = _actions(where, limit=limit)
    if as_json:
        print_json(newest)
    elif newest:
        table(("action", "when", "by", "primitive", "on", "stands", "because"), action_rows(newest))
        typer.echo(f"See the whole story of one: scanflow why {newest[0].id}")
    else:
        typer.echo("No agent has wanted anything yet. See them: scanflow agents")


@app.command()
def approve(
    action: Annotated[
        str | None, typer.Argument(metavar="[ACTION]", help="Its id; @latest is the newest. Default: list what waits.")
    ] = None,
    refuse: Annotated[bool, typer.Option("--refuse", help="Say no instead.")] = False,
    revert: Annotated[bool, typer.Option("--revert", help="Take back what was done.")] = False,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; it is kept with it.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Say yes or no to what agents want to do, or take it back. Without an action, list what waits for a yes."""
    from scanflow.agent.records import Action
    from scanflow.errors import InvalidError, UnavailableError
    from scanflow.transport import path_of
    from scanflow_client.agent_words import action_line

    if refuse and revert:
        raise InvalidError("--refuse is for what waits, --revert for what was done. Leave one out.")
    if action is None:
        if refuse or revert or reason:
            raise InvalidError(
                "Say which action. What waits is listed by: scanflow approve; what was done by: scanflow why"
            )
        _list_waiting(server(), as_json)
        return
    where = server()
    word = "refuse" if refuse else "revert" if revert else "approve"
    path = path_of("intents", _id(where, action, word=word), word)
    done = Action.model_validate(where.post(path, {"by": _person(), "reason": reason}))
    if as_json:
        print_json(done)
    else:
        typer.echo(action_line(done))
    if revert and done.state != "reverted":
        raise UnavailableError(f"It is not taken back yet. See how it stands: scanflow why {done.id}")
    if word == "approve" and not as_json:
        typer.echo(f"See what comes of it: scanflow why {done.id}")


@app.command()
def labels(
    application: Annotated[
        str | None, typer.Option("--app", metavar="APP", help="Only this application's queue.")
    ] = None,
    team: Annotated[str | None, typer.Option("--team", metavar="TEAM", help="Only this team's queue.")] = None,
    give: Annotated[
        list[str] | None, typer.Option("--give", "-g", metavar="ID=LABEL", help="Label something: --give 17=3.")
    ] = None,
    from_: Annotated[
        Path | None, typer.Option("--from", metavar="FILE.csv", help="Give the labels of a file: columns id and label.")
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace what was labelled otherwise before, by mistake.")
    ] = False,
    limit: LimitOption = 100,
    as_json: JsonOption = False,
) -> None:
    """List what agents want people to label, the most critical first; or give labels."""
    from scanflow.errors import InvalidError
    from scanflow.transport import path_of
    from scanflow_client.agent_words import label_rows

    if replace and not give and from_ is None:
        raise InvalidError("Say what replaces a label: scanflow labels --give ID=LABEL --replace")
    given = _given(give or (), from_)
    where = server()
    if give or from_ is not None:
        _give(where, given, {"app": application, "team": team, "replace": replace or None}, as_json)
        return
    found = where.get(path_of("labels"), app=application, team=team, state="wanted", limit=limit)
    if as_json:
        typer.echo(json.dumps(found, indent=2))
    elif found:
        table(("id", "application", "guess", "score", "run", "data"), label_rows(found))
        if len(found) == limit:
            typer.echo(f"These are the first {limit}. See more: scanflow labels --limit {min(10 * limit, 1000)}")
        typer.echo(
            f"Label one: scanflow labels --give {found[0]['id']}=LABEL; or many: scanflow labels --from labels.csv"
        )
    else:
        typer.echo("Nothing waits for a label.")


def _start(target: str | None, as_json: bool) -> None:
    """Ask for the agents of an application's file, or for the one that is named after it."""
    from scanflow.agent.targets import agents_of
    from scanflow.deployer.remote_travel import packed
    from scanflow.transport import path_of
    from scanflow_client.agent_words import AgentTold

    where = server()
    application, source, wanted = agents_of(target)
    body = packed(application, source)
    begun = [AgentTold.model_validate(where.put(path_of("agents", application.name, one.name), body)) for one in wanted]
    _print_wished(begun, as_json)


def _list(found: Sequence[AgentTold], as_json: bool, *, detailed: bool) -> None:
    from scanflow_client.agent_words import agent_rows, sensor_rows

    if as_json:
        print_json(found)
        return
    if not found:
        typer.echo("No agent was started yet. Start an application's: scanflow agents --start app.py")
        return
    table(AGENT_HEADS, agent_rows(found))
    for one in found if detailed else ():
        if one.sensors:
            typer.echo(f"\n{one.full_name}, at {one.url}")
            table(("sensor", "fires", "fired", "last", "next", "missed", "errors"), sensor_rows(one.sensors))
    for one in found:
        if one.error is not None:
            typer.echo(f"{one.full_name} fails: {one.error}")
        if one.problem is not None:
            typer.echo(f"{one.full_name} did not tell of its sensors: {one.problem}")
    if not detailed:
        typer.echo(f"Look at one: scanflow agents {found[0].full_name}")


def _print_wished(found: Sequence[AgentTold], as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    for one in found:
        typer.echo(f"{one.full_name}  {one.state}")
    typer.echo(f"Look at {'it' if len(found) == 1 else 'them'}: scanflow agents {found[0].app}")


def _print_journal(found: Sequence[AgentTold], limit: int, as_json: bool) -> None:
    from collections import deque

    from scanflow_client.agent_words import journal_line
    from scanflow_client.faces import entries_of, one_of

    one = one_of(found)
    entries: deque[dict[str, Any]] = deque(entries_of(one), maxlen=limit)
    if as_json:
        typer.echo(json.dumps(list(entries), indent=2))
        return
    for entry in entries:
        typer.echo(journal_line(entry))
    if not entries:
        typer.echo(f"Nothing has happened yet. See when its sensors fire: scanflow agents {one.full_name}")


def _actions(where: Server, **query: Any) -> list[Action]:
    from scanflow.agent.records import Action
    from scanflow.transport import path_of

    return [Action.model_validate(one) for one in where.get(path_of("intents"), **query)]


def _waiting(where: Server, *, limit: int = 1000) -> list[Action]:
    """Return what a person may say yes to, what waits for it before what is only suggested, the newest first."""
    verdicts = ("approve", "suggest")
    return [one for verdict in verdicts for one in _actions(where, state="pending", verdict=verdict, limit=limit)]


def _id(where: Server, action: str, *, word: str | None = None) -> str:
    """Return an action's id; ``@latest`` is the newest, or the newest of which that word can be said.

    Raises:
        NotFoundError: there is none.
    """
    from scanflow.errors import NotFoundError

    if action != "@latest":
        return action
    if word == "revert":
        found = _actions(where, state="succeeded", limit=1)
    else:
        found = _actions(where, limit=1) if word is None else _waiting(where, limit=1)
    if not found:
        raise NotFoundError(
            {None: "No agent has wanted anything yet.", "revert": "Nothing was done that could be taken back."}.get(
                word, "Nothing waits for a yes or a no."
            )
            + " See: scanflow why"
        )
    return found[0].id


def _list_waiting(where: Server, as_json: bool) -> None:
    from scanflow_client.agent_words import waiting_rows

    waiting = _waiting(where)
    if as_json:
        print_json(waiting)
    elif waiting:
        table(("action", "when", "by", "wants", "on", "since"), waiting_rows(waiting))
        first = waiting[0].id
        typer.echo(
            f"Say yes: scanflow approve {first}. Say no: scanflow approve {first} --refuse. See: scanflow why {first}"
        )
    else:
        typer.echo("Nothing waits for a yes. See what was done: scanflow why")


def _person() -> str:
    """Return who says it."""
    import getpass

    try:
        return getpass.getuser()
    except (OSError, KeyError):  # this process' user has no name here
        return "somebody"


def _given(words: Sequence[str], path: Path | None) -> list[tuple[str, Any]]:
    """Return the labels that were given, by id: those of the file first.

    Raises:
        InvalidError: one of them cannot be read.
        NotFoundError: there is no such file.
    """
    from scanflow.errors import InvalidError

    found = [] if path is None else _read_labels(path)
    for word in words:
        id, equals, text = word.partition("=")
        if not equals or not id or not text:
            raise InvalidError(f"The label {word!r} cannot be read. Write it as ID=LABEL, such as 17=3.")
        found.append((id, _value(text)))
    for id, label in found:
        if label is None:
            raise InvalidError(
                f"The label of {id!r} is null, which is none. Leave it out; if it is the word, write '{id}=\"null\"'"
            )
    return found


def _read_labels(path: Path) -> list[tuple[str, Any]]:
    import csv

    from scanflow.errors import InvalidError, NotFoundError

    try:
        with path.open(encoding="utf-8-sig", newline="") as lines:
            rows = csv.DictReader(lines, strict=True)
            if missing := [name for name in ("id", "label") if name not in (rows.fieldnames or ())]:
                raise InvalidError(
                    f"{str(path)!r} has no column {missing[0]!r}. Its first line has to name the columns: id,label"
                )
            # A row whose label is still empty is one that nobody has looked at yet.
            return [(row["id"], _value(row["label"])) for row in rows if row["id"] and row["label"]]
    except FileNotFoundError as error:
        raise NotFoundError(f"There is no file {str(path)!r}.") from error
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidError(f"{str(path)!r} cannot be read: {error}. Save it as a CSV file in UTF-8.") from error


def _value(text: str) -> Any:
    """Return a label: JSON where it is JSON, else the text."""
    try:
        value = json.loads(text)
        json.dumps(value, allow_nan=False)  # NaN is none of JSON's numbers, but may be somebody's word
    except ValueError:
        return text
    return value


def _give(where: Server, given: Sequence[tuple[str, Any]], how: dict[str, Any], as_json: bool) -> None:
    from scanflow.errors import ScanflowError
    from scanflow.transport import path_of

    done = []
    said = {"by": _person()} | {name: value for name, value in how.items() if value is not None}
    for id, label in given:
        try:
            done.append(where.post(path_of("labels", id), {"label": label, **said}))
        except ScanflowError as error:
            raise type(error)(f"{error}\nOf {len(given)} labels, the {len(done)} before it are kept.") from error
    if as_json:
        typer.echo(json.dumps(done, indent=2))
    else:
        typer.echo(f"Labels given: {len(done)}. See what is left: scanflow labels")
