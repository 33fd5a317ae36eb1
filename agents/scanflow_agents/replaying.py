"""Strategies over recorded samples: the same trace gives the same timeline, another rule a difference that is shown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from scanflow.agent.decide import Evaluation
from scanflow.agent.records import Intent, Sample

__all__ = ["Difference", "Moment", "difference", "replay"]


class Judges(Protocol):
    """What decides on a sample. See :class:`~scanflow_agents.deciding.Strategies`."""

    def evaluate(self, sample: Sample) -> list[Evaluation]:
        """Return what each strategy makes of the sample."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What one strategy made of one sample."""

    at: float
    sample: str
    sensor: str
    strategy: str
    held: bool
    rule: str
    """The rule with the values it compared."""

    wants: tuple[str, ...] = ()
    """What it wanted, in words and in order: ``run_workflow(name='training')`` or ``checker.check_predictions()``."""

    error: str | None = None

    @property
    def place(self) -> tuple[float, str, str]:
        """Where in a timeline it is."""
        return self.at, self.sample, self.strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A moment that two timelines do not share."""

    kind: Literal["added", "removed", "changed"]
    before: Moment | None
    after: Moment | None

    def __str__(self) -> str:
        sign = {"added": "+", "removed": "-", "changed": "~"}[self.kind]
        moment = self.after or self.before
        assert moment is not None
        told = [_words(one) for one in (self.before, self.after) if one is not None]
        return f"{sign} {moment.at:.3f} {moment.strategy}: {' -> '.join(told)}"


def replay(judges: Judges, samples: Iterable[Sample]) -> list[Moment]:
    """Return what the strategies make of recorded samples, in the order of the samples. Nothing is done."""
    return [_moment(sample, found) for sample in samples for found in judges.evaluate(sample)]


def difference(before: Sequence[Moment], after: Sequence[Moment]) -> list[Difference]:
    """Return the moments of two timelines over the same samples that are not the same, in the order of time."""
    return list(_difference(before, after))


def _difference(before: Sequence[Moment], after: Sequence[Moment]) -> Iterator[Difference]:
    old, new = ({moment.place: moment for moment in some} for some in (before, after))
    for place in sorted(old.keys() | new.keys()):
        was, now = old.get(place), new.get(place)
        if was is None:
            yield Difference(kind="added", before=None, after=now)
        elif now is None:
            yield Difference(kind="removed", before=was, after=None)
        elif (was.held, was.wants, was.error) != (now.held, now.wants, now.error):
            yield Difference(kind="changed", before=was, after=now)


def _moment(sample: Sample, found: Evaluation) -> Moment:
    return Moment(
        at=sample.at,
        sample=sample.id,
        sensor=sample.sensor,
        strategy=found.strategy,
        held=found.held,
        rule=found.rule,
        wants=tuple(_wanted(want) for want in found.wants),
        error=found.error,
    )


def _wanted(want: Any) -> str:
    if isinstance(want, Intent):
        given = ", ".join(f"{name}={value!r}" for name, value in want.arguments.items())
        return f"{want.primitive}({given})"
    return str(want)


def _words(moment: Moment) -> str:
    if moment.error is not None:
        return f"failed ({moment.error})"
    return "; ".join(moment.wants) if moment.held else "nothing"
