"""Commands on agents and their actions: agents, why, approve, labels."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from scanflow.app.quantities import format_count
from scanflow.errors import InvalidError, ScanflowError, UnavailableError
from scanflow_client.cli.command_options import (
    DecimalOption,
    EncodingOption,
    JsonOption,
    LimitOption,
    SeparatorOption,
    open_client,
)
from scanflow_client.cli.command_output import respond

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scanflow.agent.agent_records import AgentView
    from scanflow_client.control_client import ControlClient


def agents(
    target: Annotated[
        str | None,
        Argument(
            metavar="[APP[:AGENT]]", help="An application, or one of its agents. With --start or --stop, also a file."
        ),
    ] = None,
    start: Annotated[bool, Option("--start", help="Start the agents of an application: --start app.py.")] = False,
    stop: Annotated[bool, Option("--stop", help="Stop agents: --stop app.py, mnist or mnist:tracker.")] = False,
    journal: Annotated[bool, Option("--journal", help="Print one agent's samples, requests and misses.")] = False,
    limit: LimitOption = 100,
    as_json: JsonOption = False,
) -> None:
    """List, start or stop agents; show the status of sensors.

    Examples:
        scanflow agents --start app.py
        scanflow agents mnist:tracker --journal
        scanflow agents --stop mnist
    """
    from scanflow_client.formatting.agent_text import format_agents, format_journal

    if start + stop + journal > 1:
        raise InvalidError("--start, --stop and --journal exclude each other. Keep one.")
    client = open_client()
    if start:
        from scanflow.agent.targets import select_agents

        application, source, selected = select_agents(target)
        names = [agent.name for agent in selected]
        _print_changed(client.start_agents(application, *names, source=source), as_json)
    elif journal or stop:
        if target is None:
            raise InvalidError("Name the agent: scanflow agents APP:AGENT. List agents: scanflow agents")
        if stop:
            _print_changed(client.stop_agents(_find_name(target) or target), as_json)
        else:
            entries = client.journal(target)[-limit:]
            respond(entries, as_json, lambda: format_journal(entries, target))
    else:
        listed = client.agents(target)
        respond(listed, as_json, lambda: format_agents(listed, detailed=target is not None))


def why(
    action: Annotated[
        str | None, Argument(metavar="[ACTION]", help="The action's id; @latest is the newest. Default: list actions.")
    ] = None,
    limit: LimitOption = 20,
    as_json: JsonOption = False,
) -> None:
    """Explain why an action was taken or not. Shows its sample, rule, decision and effect.

    Examples:
        scanflow why
        scanflow why @latest
    """
    from scanflow_client.formatting.agent_text import format_actions

    client = open_client()
    if action is None:
        newest = client.intents(limit=limit)
        respond(newest, as_json, lambda: format_actions(newest))
    else:
        explanation = client.why(action)
        respond(explanation, as_json, lambda: explanation.lines)


def approve(
    action: Annotated[
        str | None,
        Argument(metavar="[ACTION]", help="The action's id; @latest is the newest. Default: list pending actions."),
    ] = None,
    refuse: Annotated[bool, Option("--refuse", help="Refuse the action instead.")] = False,
    revert: Annotated[bool, Option("--revert", help="Revert an action that was carried out.")] = False,
    reason: Annotated[str, Option("--reason", metavar="TEXT", help="The reason, which is recorded.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Approve, refuse or revert an agent's action. Without an action, list pending actions.

    Examples:
        scanflow approve
        scanflow approve @latest
        scanflow approve @latest --refuse --reason 'too few labels'
    """
    from scanflow_client.formatting.agent_text import format_action, format_approvals

    if refuse and revert:
        raise InvalidError("--refuse is for a pending action, --revert for one that was carried out. Keep one.")
    if action is None and (refuse or revert or reason):
        raise InvalidError("Name the action. Pending actions: scanflow approve; all actions: scanflow why")
    client = open_client()
    if action is None:
        waiting = client.approvals()
        respond(waiting, as_json, lambda: format_approvals(waiting))
        return
    decide = client.refuse if refuse else client.revert if revert else client.approve
    done = decide(action, reason=reason)
    after = [] if refuse or revert else [f"See its effect: scanflow why {done.id}"]
    respond(done, as_json, lambda: [format_action(done), *after])
    if revert and done.state != "reverted":
        raise UnavailableError(f"The action is not reverted yet. See its status: scanflow why {done.id}")


_GUESSES = 1000
"""The number of samples from which the classes are known that the model predicts."""


def labels(
    application: Annotated[str | None, Option("--app", metavar="APP", help="Only this application's queue.")] = None,
    team: Annotated[str | None, Option("--team", metavar="TEAM", help="Only this team's queue.")] = None,
    give: Annotated[
        list[str] | None, Option("--give", "-g", metavar="ID=LABEL", help="Label a sample: --give 17=3.")
    ] = None,
    from_: Annotated[
        Path | None, Option("--from", metavar="FILE.csv", help="Read labels from a file with the columns id and label.")
    ] = None,
    separator: SeparatorOption = "",
    encoding: EncodingOption = "",
    decimal: DecimalOption = "",
    replace: Annotated[bool, Option("--replace", help="Replace labels that you gave before.")] = False,
    export: Annotated[
        Path | None, Option("--export", metavar="FILE.csv", help="Write the queue to a file to fill in.")
    ] = None,
    labelled: Annotated[bool, Option("--labelled", help="List labelled samples, and who gave each label.")] = False,
    disagreements: Annotated[
        bool, Option("--disagreements", help="List samples that people labelled differently.")
    ] = False,
    limit: LimitOption = 100,
    as_json: JsonOption = False,
) -> None:
    """List the samples to label, or label them. The most critical sample comes first.

    Examples:
        scanflow labels --app mnist
        scanflow labels --give 17=3
        scanflow labels --export queue.csv
        scanflow labels --from queue.csv
    """
    from scanflow_client import label_files
    from scanflow_client.formatting import label_text as screens

    gives = bool(give) or from_ is not None
    if replace and not gives:
        raise InvalidError("--replace needs labels: scanflow labels --give ID=LABEL --replace")
    if gives + (export is not None) + labelled + disagreements > 1:
        raise InvalidError("Giving labels, --export, --labelled and --disagreements exclude each other. Keep one.")
    new_labels, unlabelled = (
        label_files.read(from_, encoding=encoding, separator=separator, decimal=decimal)
        if from_ is not None
        else ([], 0)
    )
    new_labels += [_parse_label(word) for word in give or ()]
    client = open_client()
    if gives:
        done = client.give_labels(new_labels, app=application, team=team, replace=replace)
        rest = f"; rows without a label: {unlabelled}" if unlabelled else ""
        summary = f"Labels given: {len(done)}{rest}. List the remaining samples: scanflow labels"
        notes = [] if as_json else label_files.describe_unknown_classes(done, _list_samples(client, application, team))
        respond(done, as_json, lambda: [summary, *notes])
    elif export is not None:
        waiting = client.labels(app=application, team=team, limit=None)
        count = label_files.write(export, waiting) if waiting else 0
        after = f"Fill in its column 'label', then: scanflow labels --from {export}"
        summary = f"{export}: {format_count(count, 'sample')}. {after}"
        respond(
            count, as_json, lambda: [summary if count else "No sample is waiting for a label, so no file was written."]
        )
    elif labelled or disagreements:
        among = True if disagreements else None
        samples = client.labels(app=application, team=team, state="given", disputed=among, limit=limit)
        respond(samples, as_json, lambda: screens.format_votes(samples, disputed=disagreements))
    else:
        samples = client.labels(app=application, team=team, limit=limit)
        page = f"{client.server.url}/labels"
        respond(samples, as_json, lambda: screens.format_labels(samples, limit=limit, page=page))


def _find_name(target: str) -> str | None:
    """Return ``APP[:AGENT]`` of ``FILE[:AGENT]``; None: it names no file."""
    from scanflow.agent.targets import select_agents

    file, colon, _ = target.partition(":")
    if not Path(file).is_file():
        return None
    application, _, (first, *_) = select_agents(target)
    return f"{application.name}:{first.name}" if colon else application.name


def _print_changed(agents: Sequence[AgentView], as_json: bool) -> None:
    lines = [f"{agent.full_name}  {agent.state}" for agent in agents]
    respond(agents, as_json, lambda: [*lines, f"Status: scanflow agents {agents[0].app}"])


def _list_samples(client: ControlClient, app: str | None, team: str | None) -> Sequence[dict[str, Any]]:
    """Return samples of the label queue, to compare new labels with; none, if the server does not answer."""
    with suppress(ScanflowError):  # the labels were given
        return client.labels(app=app, team=team, state=None, details=False, limit=_GUESSES)
    return []


def _parse_label(word: str) -> dict[str, Any]:
    from scanflow_client.label_files import parse_label

    id, equals, text = word.partition("=")
    if not equals or not id or not text:
        raise InvalidError(f"The label {word!r} cannot be read. Write it as ID=LABEL, such as 17=3.")
    if (label := parse_label(text)) is None:
        raise InvalidError(f"The label of {id!r} is null. Leave it out; for the word, write '{id}=\"null\"'")
    return {"id": id, "label": label}
