"""Commands on agents and their actions: agents, why, approve, labels."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from scanflow import transport
from scanflow.errors import InvalidError, NotFoundError, UnavailableError
from scanflow_client.cli.options import JsonOption, LimitOption, parse_value, server
from scanflow_client.cli.output import respond
from scanflow_client.formatting.text import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scanflow.agent.records import Action
    from scanflow.transport import ServerClient


def agents(
    target: Annotated[
        str | None, Argument(metavar="[APP[:AGENT]]", help="Which: an application's, or one. With --start, a file.")
    ] = None,
    start: Annotated[bool, Option("--start", help="Start the agents of an application: --start app.py.")] = False,
    stop: Annotated[bool, Option("--stop", help="Stop them: --stop mnist, or --stop mnist:tracker.")] = False,
    journal: Annotated[bool, Option("--journal", help="Print one agent's samples, requests and misses.")] = False,
    limit: LimitOption = 100,
    as_json: JsonOption = False,
) -> None:
    """List agents, the status of their sensors and what they missed; start them, stop them, or print a journal."""
    from scanflow_client.agent_client import entries_of, known, one_of, with_sensors
    from scanflow_client.formatting.agents import agents_screen, journal_lines

    if start + stop + journal > 1:
        raise InvalidError("--start, --stop and --journal exclude each other. Keep one.")
    if start:
        _start(target, as_json)
        return
    if target is None and (stop or journal):
        raise InvalidError("Say which agent: scanflow agents APP:AGENT. See which there are: scanflow agents")
    where = server()
    found = known(where, target)
    if journal:
        one = one_of(found)
        entries = list(deque(entries_of(one), maxlen=limit))
        respond(entries, as_json, lambda: journal_lines(entries, one.full_name))
    elif stop:
        _print_changed([where.delete(transport.path_of("agents", one.app, one.name)) for one in found], as_json)
    else:
        told = with_sensors(found)
        respond(told, as_json, lambda: agents_screen(told, detailed=target is not None))


def why(
    action: Annotated[
        str | None, Argument(metavar="[ACTION]", help="Its id; @latest is the newest. Default: list them.")
    ] = None,
    limit: LimitOption = 20,
    as_json: JsonOption = False,
) -> None:
    """Explain why an action was taken or was not: sample, rule, decision, effect."""
    from scanflow_client.formatting.agents import actions_screen

    where = server()
    if action is None:
        newest = _actions(where, limit=limit)
        respond(newest, as_json, lambda: actions_screen(newest))
    else:
        found = where.get(transport.path_of("intents", _id(where, action), "why"))
        respond(found, as_json, lambda: found["lines"])


def approve(
    action: Annotated[
        str | None,
        Argument(metavar="[ACTION]", help="Its id; @latest is the newest. Default: list what waits for approval."),
    ] = None,
    refuse: Annotated[bool, Option("--refuse", help="Refuse it instead.")] = False,
    revert: Annotated[bool, Option("--revert", help="Revert what was done.")] = False,
    reason: Annotated[str, Option("--reason", metavar="TEXT", help="Why; it is kept with it.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Approve, refuse or revert an agent's action. Without an action, list what waits for approval."""
    from scanflow.agent.records import Action
    from scanflow_client.formatting.agents import action_line, approvals_screen

    if refuse and revert:
        raise InvalidError("--refuse is for an action that waits, --revert for one that was done. Keep one.")
    if action is None and (refuse or revert or reason):
        raise InvalidError("Say which action. Waiting: scanflow approve; done: scanflow why")
    where = server()
    if action is None:
        waiting = _waiting(where)
        respond(waiting, as_json, lambda: approvals_screen(waiting))
        return
    word = "refuse" if refuse else "revert" if revert else "approve"
    path = transport.path_of("intents", _id(where, action, word=word), word)
    done = Action.model_validate(where.post(path, {"reason": reason}))
    after = [f"See its effect: scanflow why {done.id}"] if word == "approve" else []
    respond(done, as_json, lambda: [action_line(done), *after])
    if revert and done.state != "reverted":
        raise UnavailableError(f"It is not reverted yet. See its status: scanflow why {done.id}")


def labels(
    application: Annotated[str | None, Option("--app", metavar="APP", help="Only this application's queue.")] = None,
    team: Annotated[str | None, Option("--team", metavar="TEAM", help="Only this team's queue.")] = None,
    give: Annotated[
        list[str] | None, Option("--give", "-g", metavar="ID=LABEL", help="Label something: --give 17=3.")
    ] = None,
    from_: Annotated[
        Path | None, Option("--from", metavar="FILE.csv", help="Give the labels of a file: columns id and label.")
    ] = None,
    replace: Annotated[bool, Option("--replace", help="Replace labels that you gave before.")] = False,
    export: Annotated[
        Path | None, Option("--export", metavar="FILE.csv", help="Write all that waits into a file to fill in.")
    ] = None,
    disagreements: Annotated[
        bool, Option("--disagreements", help="List what people gave several labels, and who gave which.")
    ] = False,
    limit: LimitOption = 100,
    as_json: JsonOption = False,
) -> None:
    """List the samples that agents want labelled, the most critical first; or give labels."""
    from scanflow_client import label_files
    from scanflow_client.formatting import labels as screens

    gives = bool(give) or from_ is not None
    if replace and not gives:
        raise InvalidError("--replace needs labels: scanflow labels --give ID=LABEL --replace")
    if gives + (export is not None) + disagreements > 1:
        raise InvalidError("Giving labels, --export and --disagreements exclude each other. Keep one.")
    given, unlabelled = label_files.read(from_) if from_ is not None else ([], 0)
    given += [_label(word) for word in give or ()]
    where, path = server(), transport.path_of("labels")
    query: dict[str, Any] = {"app": application, "team": team, "details": True}
    if gives:
        how = {"app": application, "team": team, "replace": replace or None}
        body = {"labels": given, **{name: value for name, value in how.items() if value is not None}}
        done = where.patch(path, body) if given else []
        rest = f"; rows without a label: {unlabelled}" if unlabelled else ""
        respond(done, as_json, lambda: [f"Labels given: {len(done)}{rest}. See what is left: scanflow labels"])
    elif export is not None:
        some = label_files.write(export, label_files.all_wanted(lambda **part: where.get(path, **query, **part)))
        after = f"Fill in its column 'label', then: scanflow labels --from {export}"
        respond(some, as_json, lambda: [f"{export}: {counted(some, 'sample')}. {after}"])
    elif disagreements:
        found = where.get(path, **query, disputed=True, limit=limit)
        respond(found, as_json, lambda: screens.disagreements_screen(found))
    else:
        found = where.get(path, **query, state="wanted", limit=limit)
        respond(found, as_json, lambda: screens.labels_screen(found, limit=limit, page=f"{where.url}/labels"))


def _start(target: str | None, as_json: bool) -> None:
    from scanflow.agent.targets import agents_of
    from scanflow.deployer.serialization import packed

    where = server()
    application, source, wanted = agents_of(target)
    body, app = packed(application, source), application.name
    _print_changed([where.put(transport.path_of("agents", app, one.name), body) for one in wanted], as_json)


def _print_changed(answers: Sequence[Any], as_json: bool) -> None:
    from scanflow_client.formatting.agents import AgentStatus

    found = [AgentStatus.model_validate(one) for one in answers]
    lines = [f"{one.full_name}  {one.state}" for one in found]
    respond(found, as_json, lambda: [*lines, f"Status: scanflow agents {found[0].app}"])


def _actions(where: ServerClient, **query: Any) -> list[Action]:
    from scanflow.agent.records import Action

    return [Action.model_validate(one) for one in where.get(transport.path_of("intents"), **query)]


def _waiting(where: ServerClient, *, limit: int = 1000) -> list[Action]:
    """Return what a person may approve: what waits for it before what is only suggested, the newest first."""
    verdicts = ("approve", "suggest")
    return [one for verdict in verdicts for one in _actions(where, state="pending", verdict=verdict, limit=limit)]


def _id(where: ServerClient, action: str, *, word: str | None = None) -> str:
    """Return an action's id; ``@latest`` is the newest, or the newest that can be approved, refused or reverted."""
    if action != "@latest":
        return action
    if word == "revert":
        found, nothing = _actions(where, state="succeeded", limit=1), "No action can be reverted."
    elif word is None:
        found, nothing = _actions(where, limit=1), "No agent has requested an action yet."
    else:
        found, nothing = _waiting(where, limit=1), "No action is waiting for approval."
    if not found:
        raise NotFoundError(f"{nothing} See: scanflow why")
    return found[0].id


def _label(word: str) -> dict[str, Any]:
    id, equals, text = word.partition("=")
    if not equals or not id or not text:
        raise InvalidError(f"The label {word!r} cannot be read. Write it as ID=LABEL, such as 17=3.")
    if (label := parse_value(text)) is None:
        raise InvalidError(f"The label of {id!r} is null. Leave it out; for the word, write '{id}=\"null\"'")
    return {"id": id, "label": label}
