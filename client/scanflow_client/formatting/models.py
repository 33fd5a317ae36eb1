"""Models and what became of their versions, as lines and tables."""

from __future__ import annotations

from collections.abc import Sequence

from scanflow.app.quantities import counted
from scanflow.html_table import html_table
from scanflow.reports.model_history import VersionHistory
from scanflow_client.formatting.services import shape_text
from scanflow_client.formatting.table import Screen, Table
from scanflow_client.formatting.text import ago, clock


class VersionList(list[VersionHistory]):
    """Versions of models, the newest first, which a notebook shows as a table."""

    def _repr_html_(self) -> str:
        models = dict.fromkeys(one.model for one in self)
        columns = ("model", "version", "in use", "verdict", "compared on", "drift", "resources")
        rows = [
            (one.model, one.version, _use(one), _decided(one), "; ".join(_gains(one)), _drift(one), _resources(one))
            for one in self
        ]
        return html_table(f"{counted(len(models), 'model')}, {counted(len(self), 'version')}", columns, rows)


def models_table(found: Sequence[VersionHistory]) -> Table:
    """Return a row for each model: how many versions it has, which is in use, and what was decided last."""
    of: dict[str, list[VersionHistory]] = {}
    for one in found:
        of.setdefault(one.model, []).append(one)
    rows = []
    for name, versions in of.items():
        used = next((one for one in versions if one.in_use), None)
        last = next((one for one in versions if one.verdict), None)
        in_use = "-" if used is None else f"{used.version} ({_use(used)})"
        decided = "-" if last is None else f"{last.version}: {last.verdict}"
        rows.append((name, str(len(versions)), in_use, ago(None if used is None else used.since), decided))
    return Table(("model", "versions", "in use", "since", "decided last"), rows)


def versions_screen(found: Sequence[VersionHistory]) -> Screen:
    """Return the versions of one model, what each was compared on and why it was decided so, and what to do next."""
    head = ("version", "made", "in use", "since", "verdict", "drift", "trained by", "resources")
    screen: list[str | Table] = [Table(head, [_row(one) for one in found])]
    for one in found:
        about = [*_gains(one), *([one.reason] if one.reason else [])]
        if about:
            screen += ["", f"Version {one.version}: {one.verdict}", *(f"  {line}" for line in about)]
    return [*screen, "", _next_command(found)]


def _row(one: VersionHistory) -> tuple[str, ...]:
    since = "-" if one.since is None else clock(one.since)
    made, drift = clock(one.created), _drift(one) or "-"
    verdict, resources = one.verdict or "-", _resources(one) or "-"
    return (str(one.version), made, _use(one) or "-", since, verdict, drift, one.run or "-", resources)


def _next_command(found: Sequence[VersionHistory]) -> str:
    used = next((one for one in found if one.in_use), None)
    if used is not None and used.before is not None:
        return f"Take version {used.version} out of use: scanflow models reject {used.model} {used.version}"
    other = next((one for one in found if not one.in_use), None)
    if other is not None:
        return f"Put another version to use: scanflow models promote {other.model} {other.version}"
    return f"Retrain it, or register another version of {found[0].model}. All models: scanflow models"


def _use(one: VersionHistory) -> str:
    return ", ".join([*(["champion"] if one.champion else []), *(f"in {name}" for name in one.services)])


def _decided(one: VersionHistory) -> str:
    return f"{one.verdict}: {one.reason}" if one.reason else one.verdict


def _gains(one: VersionHistory) -> list[str]:
    """Return a line a slice: ``current: 68.3 to 90.8 %, +22.5 points (+14.7 to +29.6), n = 120, with version 1``."""
    beside = "" if one.against is None else f", with version {one.against}"
    return [
        f"{part.name}: {100 * part.champion:.1f} to {100 * part.challenger:.1f} %, "
        f"{100 * (part.challenger - part.champion):+.1f} points ({100 * part.low:+.1f} to {100 * part.high:+.1f}), "
        f"n = {part.n:,}{beside}"
        for part in one.compared
    ]


def _drift(one: VersionHistory) -> str:
    return ", ".join([*one.drifted[:3], *([] if one.drift is None else [one.drift])])


def _resources(one: VersionHistory) -> str:
    return "" if one.resources is None else shape_text(one.resources)
