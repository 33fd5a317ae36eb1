"""The history of a model's versions, from the registry's tags, the server's events, and the services' models.

Pure. Times are seconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from scanflow.agent.agent_records import Event
from scanflow.backends.service_records import ServiceRecord, Shape
from scanflow.errors import InvalidError
from scanflow.knowledge.checks import check_model_name
from scanflow.knowledge.knowledge_records import ModelVersion
from scanflow.knowledge.model_cache import SHAPE_TAG
from scanflow.knowledge.version_tags import (
    ACTION,
    BY_HAND,
    CHAMPION,
    OVERRULED,
    PERSON,
    PROMOTION,
    REASON,
    find_obstacle,
    find_rejection,
    find_version_before,
)
from scanflow.reports.loop_events import collect_champions, format_verdict, get_begin

TYPES = ("drift.found", "model.judged", "model.promoted", "model.rejected")
"""The types of events about versions."""

UNSERVABLE = "cannot be served under this name"
"""The verdict on each version of a model that another program named as no address of the registry can."""


class ComparedSlice(BaseModel):
    """The comparison of a version with the one in use, on the same points of one slice."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    n: int
    champion: float  # accuracy, 0 to 1
    challenger: float
    low: float  # bounds of the gain, -1 to 1
    high: float
    traffic: float | None = None  # its share of what is expected, 0 to 1; None: unknown


class VersionHistory(BaseModel):
    """The history of one version of a model."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    version: int
    created: float
    aliases: tuple[str, ...] = ()
    services: tuple[str, ...] = ()  # that answer with it now
    champion: bool = False
    since: float | None = None  # since when it is the champion, as far as events tell
    before: int | None = None  # the version that it was put to use instead of
    verdict: str = ""  # promoted, rejected, waits for labels, ...; empty: nothing was decided of it
    reason: str = ""
    by: str = ""  # the person who decided, or approved
    overruled: str = ""  # the rejection in spite of which that person promoted it: rejected by ada: why
    action: str = ""  # that scanflow why explains
    against: int | None = None  # the version that it was compared with
    compared: tuple[ComparedSlice, ...] = ()
    drift: str | None = None  # the run of the last detection of drift before its training began
    drifted: tuple[str, ...] = ()  # the columns
    run: str | None = None  # that trained it
    resources: Shape | None = None  # that it was served with last

    @property
    def in_use(self) -> bool:
        return self.champion or bool(self.services)

    @property
    def is_servable(self) -> bool:
        return self.verdict != UNSERVABLE


def build_histories(
    versions: Sequence[ModelVersion],
    events: Sequence[Event] = (),
    services: Iterable[ServiceRecord] = (),
    *,
    alias: str = CHAMPION,
) -> list[VersionHistory]:
    """Return the histories of one model's versions, in their order.

    Args:
        versions: From the registry.
        events: Of :data:`TYPES`, in order of time, of this model and others.
        services: The current services.
        alias: What names the version in use.
    """
    serving = [
        (service.name, uri)
        for service in services
        if service.current is not None
        for uri in service.current.models.values()
    ]
    own_events = [event for event in events if versions and event.subject == f"model/{versions[0].name}"]
    last = collect_champions(own_events)[-1:]
    used = next((version for version in versions if alias in version.aliases), None)
    version_histories: list[VersionHistory] = []
    for version in versions:
        champion = alias in version.aliases
        comparison = next((event for event in reversed(own_events) if _is_about(event, version.version)), None)
        history = VersionHistory(
            model=version.name,
            version=version.version,
            created=version.created_at.timestamp(),
            aliases=version.aliases,
            services=tuple(dict.fromkeys(name for name, uri in serving if uri == version.uri)),
            champion=champion,
            since=next((at for at, number in last if champion and number == version.version), None),
            before=find_version_before(version.tags),
            resources=_parse_shape(version.tags.get(SHAPE_TAG)),
            run=version.tags.get("scanflow.run") or None,
            by=version.tags.get(PERSON, "") if version.tags.get(PROMOTION) else "",
            action=version.tags.get(ACTION, "") if version.tags.get(PROMOTION) else "",
        )
        version_histories.append(
            history.model_copy(update=_build_verdict(version, comparison, used) | _build_evidence(comparison, events))
        )
    return version_histories


def _is_about(event: Event, version: int) -> bool:
    return event.type == "model.judged" and event.data.get("version") == version


def _parse_shape(shape: str | None) -> Shape | None:
    with suppress(ValidationError):  # another program's tag of that name
        return None if shape is None else Shape.model_validate_json(shape)
    return None


def _build_verdict(version: ModelVersion, comparison: Event | None, champion: ModelVersion | None) -> dict[str, Any]:
    """Return the verdict on a version, from the registry first: agents decide by it."""
    try:
        check_model_name(version.name)
    except InvalidError as error:
        return {"verdict": UNSERVABLE, "reason": str(error)}
    evidence: Any = {} if comparison is None else comparison.data.get("evidence")
    found = evidence if isinstance(evidence, Mapping) else {}
    reason = str(found.get("reason") or "")
    if (rejection := find_rejection(version.tags)) is not None:
        return {"verdict": "rejected", "reason": rejection}
    if promotion := version.tags.get(PROMOTION):
        overruled = version.tags.get(OVERRULED, "") if promotion == BY_HAND else ""
        return {"verdict": promotion, "reason": version.tags.get(REASON) or reason, "overruled": overruled}
    if comparison is None:
        return {}
    is_used = champion is not None and champion.version == version.version
    if (
        not is_used
        and found.get("verdict") in {"promote", "ask"}
        and (obstacle := find_obstacle(version, champion, judged_against=found.get("champion")))
    ):
        return {"verdict": "not promoted", "reason": obstacle}
    return {"verdict": format_verdict(comparison.data), "reason": reason}


def _build_evidence(comparison: Event | None, events: Sequence[Event]) -> dict[str, Any]:
    """Return the slices a version was compared on, and the drift before it."""
    if comparison is None:
        return {}
    fields: dict[str, Any] = {}
    evidence: Any = comparison.data.get("evidence")
    if isinstance(evidence, Mapping) and (compared := read_slices(evidence)):
        fields["compared"] = compared
        with suppress(TypeError):  # somebody else's event of that name
            fields["against"] = evidence.get("champion")
            fields["drifted"] = tuple(str(name) for name in evidence.get("drifted") or ())
    before = [
        event
        for event in events
        if event.type == "drift.found" and event.app == comparison.app and event.at <= get_begin(comparison)
    ]
    return fields | {"drift": str(before[-1].data.get("run"))} if before else fields


def read_slices(evidence: Mapping[str, Any]) -> tuple[ComparedSlice, ...]:
    """Return the slices with points of a promotion's evidence, as JSON; none of evidence of another form."""
    with suppress(AttributeError, KeyError, TypeError, ValueError):
        traffic = evidence.get("traffic") or {}
        return tuple(_build_slice(part, traffic.get(part["name"])) for part in evidence["slices"] if part["n"])
    return ()


def _build_slice(part: Mapping[str, Any], traffic: float | None) -> ComparedSlice:
    n = int(part["n"])
    champion, challenger = (part[f"{who}_right"] / n for who in ("champion", "challenger"))
    return ComparedSlice(
        name=str(part["name"]),
        n=n,
        champion=champion,
        challenger=challenger,
        low=float(part["low"]),
        high=float(part["high"]),
        traffic=traffic,
    )
