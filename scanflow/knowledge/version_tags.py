"""Tags of a model version about its use, written by agents and people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from scanflow.knowledge.knowledge_records import ModelVersion
from scanflow.text.printable import make_one_line

PROMOTION: Final = "scanflow.promotion"
"""``promoted``, ``promoted by hand``, ``rejected: why`` or ``taken out of use``. Versions with the last two, and a
promoted one that is no longer the champion, are not tried again unless a caller requests it: ``asked for again``."""

PROMOTED: Final = "promoted"
BY_HAND: Final = "promoted by hand"
"""Promoted by a person: the result of an agent's earlier action no longer matters."""

OUT_OF_USE: Final = "taken out of use"
"""Set by a client other than the executor, before the version was promoted."""

AGAIN: Final = "asked for again"
"""Set after the result of the action in the tag ``scanflow.action``."""

ACTION: Final = "scanflow.action"
"""The action that caused the value of the tag ``scanflow.promotion``."""

BEFORE: Final = "scanflow.before"
"""The version that was in use before."""

PERSON: Final = "scanflow.by"
"""The person who promoted or rejected the version or took it out of use, or approved the action that did."""

REASON: Final = "scanflow.why"
"""That person's reason for putting it to use."""

REFERENCE: Final = "scanflow.reference"
"""The data the version was trained on, for detectors to compare with: ``runs:/ID/labels.json``, or ``run/NAME``."""

CHAMPION: Final = "champion"
"""The default alias of the version in use."""

OVERRULED: Final = "scanflow.overruled"
"""The rejection in spite of which a person put the version to use: ``rejected by ada: why``."""

_REJECTED = "rejected: "
MAX_LENGTH: Final = 1000


def find_rejection(tags: Mapping[str, str]) -> str | None:
    """Return the reason of a version's rejection; None if it was not rejected."""
    text = tags.get(PROMOTION, "")
    return text.removeprefix(_REJECTED) if text.startswith(_REJECTED) else None


def describe_rejection(tags: Mapping[str, str]) -> str | None:
    """Return by whom a version was rejected, and why; None: it was not."""
    reason = find_rejection(tags)
    if reason is None:
        return None
    return f"rejected by {tags[PERSON]}: {reason}" if tags.get(PERSON) else f"rejected: {reason}"


def find_version_before(tags: Mapping[str, str]) -> int | None:
    """Return the version that was in use before; None if unknown."""
    number = tags.get(BEFORE, "")
    return int(number) if number.isdecimal() else None


def describe_out_of_use(tags: Mapping[str, str], champion: Mapping[str, str] | None, *, number: int) -> str | None:
    """Describe that a version was in use and was withdrawn, by a person if it is known by whom; None: it was not.

    Args:
        tags: The version's.
        champion: Those of the version in use.
        number: The version's.
    """
    promotion = tags.get(PROMOTION)
    if promotion not in {PROMOTED, BY_HAND, OUT_OF_USE}:
        return None
    if promotion == OUT_OF_USE and tags.get(PERSON):
        return f"{tags[PERSON]} took it out of use"
    if champion is not None and champion.get(PROMOTION) == BY_HAND and find_version_before(champion) == number:
        why = f" ({champion[REASON]})" if champion.get(REASON) else ""
        return f"{champion.get(PERSON) or 'a person'} promoted another version in its place{why}"
    return "it was taken out of use"


def find_obstacle(
    version: ModelVersion, champion: ModelVersion | None, *, judged_against: int | None = None
) -> str | None:
    """Return what prevents a challenger's promotion, other than its metric; None: nothing. Pure."""
    if champion is not None and champion.version == version.version:
        return "it is in use"
    if (why := find_rejection(version.tags)) is not None:
        return f"it was rejected: {why}"
    if champion is not None and champion.version > version.version:
        return f"the version in use, {champion.version}, is newer"
    in_use = None if champion is None else champion.tags
    if (why := describe_out_of_use(version.tags, in_use, number=version.version)) is not None:
        return why
    if champion is not None and judged_against is not None and judged_against != champion.version:
        return f"it was compared with version {judged_against}, and {champion.version} is in use"
    return None


def format_decision_tags(by: str | None, why: str) -> dict[str, str]:
    """Return the tags of a person's decision; empty texts take the place of an earlier one's."""
    return {PERSON: make_one_line(by or "", MAX_LENGTH), REASON: make_one_line(why, MAX_LENGTH)}


def format_rejection(why: str) -> str:
    """Format the tag of a rejected version."""
    return _REJECTED + make_one_line(why, MAX_LENGTH)
