"""Models and the history of their versions, as lines and tables."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from scanflow.reports.model_history import VersionHistory
from scanflow_client.formatting.service_text import format_shape
from scanflow_client.formatting.text import format_age, format_time
from scanflow_client.formatting.text_table import Screen, Table


def format_models(histories: Sequence[VersionHistory]) -> Screen:
    """Return a row for each model: its number of versions, the one in use, and the last decision."""
    if not histories:
        return ["There is no model yet. Register one in MLflow, or have one trained: scanflow demo"]
    by_model: dict[str, list[VersionHistory]] = {}
    for version in histories:
        by_model.setdefault(version.model, []).append(version)
    rows = []
    for name, versions in by_model.items():
        used = next((version for version in versions if version.in_use), None)
        last = next((version for version in versions if version.verdict), None)
        in_use = "-" if used is None else f"{used.version} ({_format_use(used)})"
        decided = "-" if last is None else f"{last.version}: {last.verdict}"
        rows.append((name, str(len(versions)), in_use, format_age(None if used is None else used.since), decided))
    table = Table(("model", "versions", "in use", "since", "last decision"), rows)
    return [table, suggest_versions(histories[0].model)]


def format_versions(histories: Sequence[VersionHistory]) -> Screen:
    """Return the versions of a model with their comparisons and decisions, and the next command."""
    if not histories:
        return ["It has no version. All models: scanflow models"]
    head = ("version", "made", "in use", "since", "verdict", "drift", "trained by", "resources")
    screen: list[str | Table] = [Table(head, [_format_version(version) for version in histories])]
    for version in histories:
        about = [*_format_gains(version), *([version.reason] if version.reason else [])]
        about += [f"decided by {version.by}"] if version.by else []
        about += [f"before: {version.overruled}"] if version.overruled else []
        about += [f"by the action {version.action}: scanflow why {version.action}"] if version.action else []
        if about:
            screen += ["", f"Version {version.version}: {version.verdict}", *(f"  {line}" for line in about)]
    return [*screen, "", _suggest_command(histories)]


def suggest_versions(name: str) -> str:
    return f"Show a model's versions: scanflow models {shlex.quote(name)}"


def _format_version(version: VersionHistory) -> tuple[str, ...]:
    since = "-" if version.since is None else format_time(version.since)
    created, drift = format_time(version.created), _format_drift(version) or "-"
    verdict, resources = version.verdict or "-", _format_resources(version) or "-"
    return (
        str(version.version),
        created,
        _format_use(version) or "-",
        since,
        verdict,
        drift,
        version.run or "-",
        resources,
    )


def _suggest_command(histories: Sequence[VersionHistory]) -> str:
    accepted = [version for version in histories if version.verdict != "rejected"]
    if not histories[0].is_servable:
        return "Register it under another name. All models: scanflow models"
    used = next((version for version in accepted if version.in_use), None)
    if used is not None and used.before in {version.version for version in accepted}:
        return f"Reject version {used.version}: scanflow models reject {used.model} {used.version}"
    other = next((version for version in accepted if not version.in_use), None)
    if other is not None:
        return f"Promote another version: scanflow models promote {other.model} {other.version}"
    return f"Retrain it, or register another version of {histories[0].model}. All models: scanflow models"


def _format_use(version: VersionHistory) -> str:
    return ", ".join([*(["champion"] if version.champion else []), *(f"in {name}" for name in version.services)])


def _format_gains(version: VersionHistory) -> list[str]:
    """Return a line per slice: ``current: 68.3 to 90.8 %, +22.5 points (+14.7 to +29.6), n = 120, with version 1``."""
    beside = "" if version.against is None else f", with version {version.against}"
    return [
        f"{part.name}: {100 * part.champion:.1f} to {100 * part.challenger:.1f} %, "
        f"{100 * (part.challenger - part.champion):+.1f} points ({100 * part.low:+.1f} to {100 * part.high:+.1f}), "
        f"n = {part.n:,}{beside}"
        for part in version.compared
    ]


def _format_drift(version: VersionHistory) -> str:
    return ", ".join([*version.drifted[:3], *([] if version.drift is None else [version.drift])])


def _format_resources(version: VersionHistory) -> str:
    return "" if version.resources is None else format_shape(version.resources)
