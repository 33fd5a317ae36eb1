"""Validates names and values for the knowledge base: the same in every adapter, before anything is stored.

The limits are MLflow's, made strict where MLflow itself would cut a value short or take a name that it cannot find
again.
"""

from __future__ import annotations

import math
import posixpath
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from scanflow.errors import InvalidError, NotFoundError, did_you_mean
from scanflow.knowledge.knowledge_records import LATEST
from scanflow.names import check_name, format_environment_name

RESERVED_PREFIX = "scanflow.kb."
"""Prefix of the tags that adapters use internally; other clients cannot set them."""

OWNER = "scanflow.team"
"""The tag with the team that owns an experiment or a registered model, or that made a version."""

DEFAULT_TEAM = "default"
"""The owner of what has no such tag."""

MAX_KEY = 250
MAX_PARAM = 6000  # MLflow cuts longer ones short, with a warning in the log only
MAX_TAG = 5000
_FIELDS = {"mlflow.parentRunId": "parent", "mlflow.runName": "name"}
_KEY = re.compile(r"[/\w.\- :]+")
_MODEL = re.compile(r"\w([\w .+\-]*[\w.+\-])?")
_ALIAS = re.compile(r"[\w\-]+")
_LIKE_A_VERSION = re.compile(r"[vV]?\d+")


def check_environment(app: str, team: str) -> str:
    return format_environment_name(check_name(app, "The application"), check_name(team, "The team"))


def check_artifact_name(name: str) -> str:
    return _check_printable(name, "Artifacts cannot be saved as", ".")


def check_run_name(name: str) -> str:
    return _check_printable(name, "A run cannot be called", ", or leave it out.")


def check_model_name(name: str) -> str:
    """Reject names that ``models:/<name>@<alias>`` cannot carry."""
    if len(name) <= MAX_KEY and _MODEL.fullmatch(name):
        return name
    better = re.sub(r"[^\w.+\-]+", "-", name).strip("-. ")[:MAX_KEY]
    advice = f" Write {better!r} instead." if better and better != name and _MODEL.fullmatch(better) else ""
    raise InvalidError(
        f"A model cannot be called {name!r:.80}: a name is 1 to {MAX_KEY} letters, digits, spaces and any of '_.+-', "
        f"begins with a letter or digit, and ends without a space.{advice}"
    )


def check_alias(alias: str) -> str:
    if alias.lower() == LATEST:
        raise InvalidError(
            f"The alias {alias!r} is reserved: it always means the newest version. Choose another, such as 'champion'."
        )
    if _LIKE_A_VERSION.fullmatch(alias):
        raise InvalidError(f"The alias {alias!r} looks like a version number. Choose a word, such as 'champion'.")
    if len(alias) <= MAX_KEY and _ALIAS.fullmatch(alias):
        return alias
    raise InvalidError(f"The alias {alias!r:.80} cannot be used: write 1 to {MAX_KEY} letters, digits, '_' and '-'.")


def check_tags(tags: Mapping[str, str] | None) -> dict[str, str]:
    for key, value in (tags or {}).items():
        _check_key(key, "tag")
        if key in _FIELDS:
            raise InvalidError(f"The tag {key!r} cannot be set: it is a field. Write {_FIELDS[key]}=... instead.")
        if key.startswith(RESERVED_PREFIX):
            raise InvalidError(
                f"The tag {key!r} cannot be set: tags that begin with {RESERVED_PREFIX!r} are scanflow's own."
            )
        if not isinstance(value, str):
            raise InvalidError(
                f"The tag {key!r} has the value {value!r:.60}; a tag's value is text. Write str(...) around it."
            )
        _check_length(key, "tag", value, MAX_TAG)
    return dict(tags or {})


def check_params(params: Mapping[str, object] | None) -> dict[str, str]:
    texts = {key: str(value) for key, value in (params or {}).items()}
    for key, text in texts.items():
        _check_key(key, "parameter")
        _check_length(key, "parameter", text, MAX_PARAM)
    return texts


def check_metrics(metrics: Mapping[str, float] | None) -> dict[str, float]:
    numbers: dict[str, float] = {}
    for key, value in (metrics or {}).items():
        _check_key(key, "metric")
        try:
            number = float(value)
        except (TypeError, ValueError) as error:
            raise InvalidError(f"The metric {key!r} has the value {value!r:.60}; a metric is a number.") from error
        if not math.isfinite(number):
            # A SQL store keeps NaN as 0 and infinity as 1.8e308, and then finds them in searches.
            raise InvalidError(
                f"The metric {key!r} is {number}; only finite numbers can be searched. Log it as a tag instead."
            )
        numbers[key] = number
    return numbers


def check_times(started_at: datetime | None, ended_at: datetime | None, *, now: datetime) -> tuple[datetime, datetime]:
    """Return a run's start and end, in UTC and whole milliseconds; missing times are ``now``."""
    begun = None if started_at is None else _to_utc(started_at)
    ended = max(_to_utc(now), begun or _to_utc(now)) if ended_at is None else _to_utc(ended_at)
    begun = begun or min(_to_utc(now), ended)
    if begun > ended:
        raise InvalidError(f"The run would have ended at {ended}, before it started at {begun}. Check the two times.")
    return begun, ended


def check_path(path: str) -> str:
    """Return the path inside a run's artifacts without a slash at its end, if it stays inside."""
    if path.startswith("/") or ".." in path.split("/"):
        raise InvalidError(f"The artifact path {path!r} leads out of the run. Write one such as 'model/weights.bin'.")
    normal = posixpath.normpath(path)
    return "" if normal == "." else normal


def check_owner(environment: str, owner: tuple[str, str], requested: tuple[str, str]) -> None:
    """Reject an application that would share another's environment, as ``a-b`` of ``c`` and ``a`` of ``b-c`` would."""
    if owner != requested:
        raise InvalidError(
            f"Application {requested[0]!r} of team {requested[1]!r} would share the environment {environment!r} with "
            f"application {owner[0]!r} of team {owner[1]!r}, which already uses it. Rename one of the two."
        )


def build_unknown_path_error(run_id: str, path: str, names: Iterable[str]) -> NotFoundError:
    if not path:
        return NotFoundError(f"The run {run_id!r} has no artifacts.")
    return NotFoundError(f"The run {run_id!r} has no artifact {path!r}.{did_you_mean(path, set(names))}")


def _check_printable(name: str, refused: str, otherwise: str) -> str:
    if 1 <= len(name) <= MAX_KEY and name.isprintable():
        return name
    raise InvalidError(f"{refused} {name!r:.80}: write 1 to {MAX_KEY} printable characters{otherwise}")


def _check_length(key: str, what: str, text: str, most: int) -> None:
    if len(text) > most:
        raise InvalidError(
            f"The {what} {key!r} is {len(text)} characters long; {most} can be stored. Log it as an artifact instead."
        )


def _to_utc(time: datetime) -> datetime:
    if time.tzinfo is None:
        raise InvalidError(f"The time {time} has no time zone, so it is ambiguous. Write datetime.now(UTC).")
    return datetime.fromtimestamp(int(time.timestamp() * 1000) / 1000, UTC)


def _check_key(key: str, what: str) -> None:
    if not _KEY.fullmatch(key) or len(key) > MAX_KEY:
        raise InvalidError(
            f"A {what} cannot be called {key!r:.80}: write 1 to {MAX_KEY} letters, digits, spaces and any of '_-./:'."
        )
    if posixpath.normpath(key) != key or key.startswith(("/", "..")) or key == ".":
        raise InvalidError(
            f"A {what} cannot be called {key!r}: as a path, it would be another name. Remove '.' and '//'."
        )
