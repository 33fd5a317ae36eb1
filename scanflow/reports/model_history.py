"""What became of a model's versions: from the registry's tags, the server's events, and what services answer with.

Pure. Times are seconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from scanflow.agent.records import Event
from scanflow.backends.service_records import ServiceRecord, Shape
from scanflow.knowledge.model_cache import SHAPE_TAG, split_model_uri
from scanflow.knowledge.records import ModelVersion
from scanflow.knowledge.version_tags import CHAMPION, PROMOTION, rejected, version_before
from scanflow.reports.loop_events import champions_of, verdict_text

TYPES = ("drift.found", "model.judged", "model.promoted", "model.rejected")
"""The types of the events that tell of versions."""


class ComparedSlice(BaseModel):
    """How a version did beside the one in use, on the same points of one kind."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    n: int
    champion: float  # accuracy, 0 to 1
    challenger: float
    low: float  # bounds of the gain, -1 to 1
    high: float


class VersionHistory(BaseModel):
    """One version of a model, and what became of it."""

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
    against: int | None = None  # the version that it was compared with
    compared: tuple[ComparedSlice, ...] = ()
    drift: str | None = None  # the detection's run, where drift led to it
    drifted: tuple[str, ...] = ()  # the columns
    run: str | None = None  # that trained it
    resources: Shape | None = None  # that it was served with last

    @property
    def in_use(self) -> bool:
        return self.champion or bool(self.services)


def histories(
    versions: Sequence[ModelVersion],
    events: Sequence[Event] = (),
    services: Iterable[ServiceRecord] = (),
    *,
    alias: str = CHAMPION,
) -> list[VersionHistory]:
    """Return what became of the versions of one model, in their order.

    Args:
        versions: As the registry has them.
        events: Of :data:`TYPES`, in the order told, of this model and others.
        services: As they are now.
        alias: What names the version in use.
    """
    serving = [(one.name, uri) for one in services if one.current is not None for uri in one.current.models.values()]
    mine = [event for event in events if versions and event.subject == f"model/{versions[0].name}"]
    last = champions_of(mine)[-1:]
    found: list[VersionHistory] = []
    for one in versions:
        champion = alias in one.aliases
        judged = next((event for event in reversed(mine) if _is_about(event, one.version)), None)
        known = VersionHistory(
            model=one.name,
            version=one.version,
            created=one.created_at.timestamp(),
            aliases=one.aliases,
            services=tuple(dict.fromkeys(name for name, uri in serving if uri == one.uri)),
            champion=champion,
            since=next((at for at, number in last if champion and number == one.version), None),
            before=version_before(one.tags),
            resources=_resources(one.tags.get(SHAPE_TAG)),
            run=one.tags.get("scanflow.run") or None,
        )
        found.append(known.model_copy(update=_verdict(one, judged) | _evidence(judged, events)))
    return found


def serves(record: ServiceRecord, model: str) -> dict[str, str]:
    """Return the nodes with the model that a service answers with now, and the version of each."""
    current = record.current
    return {node: uri for node, uri in current.models.items() if split_model_uri(uri)[0] == model} if current else {}


def _is_about(event: Event, version: int) -> bool:
    return event.type == "model.judged" and event.data.get("version") == version


def _resources(shape: str | None) -> Shape | None:
    with suppress(ValidationError):  # another program's tag of that name
        return None if shape is None else Shape.model_validate_json(shape)
    return None


def _verdict(version: ModelVersion, judged: Event | None) -> dict[str, Any]:
    """Return what is decided of a version, by the registry first: that is what agents go by."""
    evidence: Any = {} if judged is None else judged.data.get("evidence")
    said = str(evidence.get("reason") or "") if isinstance(evidence, Mapping) else ""
    if (why := rejected(version.tags)) is not None:
        return {"verdict": "rejected", "reason": why}
    if noted := version.tags.get(PROMOTION):
        return {"verdict": noted, "reason": said}
    return {} if judged is None else {"verdict": verdict_text(judged.data), "reason": said}


def _evidence(judged: Event | None, events: Sequence[Event]) -> dict[str, Any]:
    """Return what a version was compared on, and the drift that came before."""
    if judged is None:
        return {}
    found: dict[str, Any] = {}
    with suppress(KeyError, TypeError, ValueError):  # somebody else's event of that name
        evidence: Any = judged.data["evidence"]
        found["compared"] = tuple(_compared(part) for part in evidence["slices"] if part["n"])
        found["against"] = evidence.get("champion")
        found["drifted"] = tuple(str(name) for name in evidence.get("drifted") or ())
    before = [one for one in events if one.type == "drift.found" and one.app == judged.app and one.at <= judged.at]
    return found | {"drift": str(before[-1].data.get("run"))} if before else found


def _compared(part: Mapping[str, Any]) -> ComparedSlice:
    n, low, high = int(part["n"]), float(part["low"]), float(part["high"])
    champion, challenger = (part[f"{who}_right"] / n for who in ("champion", "challenger"))
    return ComparedSlice(name=str(part["name"]), n=n, champion=champion, challenger=challenger, low=low, high=high)
