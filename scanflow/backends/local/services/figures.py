"""What instances did, read from the folder through which they share their metrics, and from ``/proc``.

The folder is prometheus_client's for several processes: a file for each process and kind, which that library maps into
memory. It is read here without the library, so that a supervisor stays small.
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

__all__ = ["Conducted", "Totals", "Usage", "between", "quantile", "read_totals", "read_usage", "tidy"]

REQUESTS = "scanflow_requests_total"
SECONDS = "scanflow_request_seconds"
RECORDED = "scanflow_recorded_total"
DROPPED = "scanflow_dropped_total"
MOST_DEAD = 16
"""Files of processes that are gone, before they are put together into one."""

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_Key = tuple[str, tuple[tuple[str, str], ...]]


@dataclass(slots=True)
class Conducted:
    """What one revision did until now, or between two moments."""

    requests: float = 0.0
    errors: float = 0.0
    """Answered with 500 or more."""

    seconds: float = 0.0
    timed: float = 0.0
    """Requests whose latency is in ``buckets``."""

    buckets: dict[float, float] = field(default_factory=dict)
    """How many requests took at most so many seconds, and longer than the bucket before."""


@dataclass(slots=True)
class Totals:
    """Everything since the service began."""

    revisions: dict[str, Conducted] = field(default_factory=dict)
    recorded: float = 0.0
    dropped: float = 0.0

    @property
    def requests(self) -> float:
        """Requests answered by any revision, or refused before one was chosen."""
        return sum(one.requests for one in self.revisions.values())


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process uses."""

    cpu_s: float
    rss_bytes: int
    threads: int


def read_totals(folder: Path) -> Totals:
    """Return what all processes of the service counted, those that are gone included."""
    totals = Totals()
    revisions: defaultdict[str, Conducted] = defaultdict(Conducted)
    for (name, labels), value in _sums(_files(folder, ("counter", "histogram"))).items():
        own = dict(labels)
        conducted = revisions[own.get("revision", "")]
        if name == REQUESTS:
            conducted.requests += value
            conducted.errors += value if own.get("code", "").startswith("5") else 0.0
        elif name == f"{SECONDS}_bucket":
            limit = float(own.get("le", "inf"))
            conducted.buckets[limit] = conducted.buckets.get(limit, 0.0) + value
            conducted.timed += value
        elif name == f"{SECONDS}_sum":
            conducted.seconds += value
        elif name == RECORDED:
            totals.recorded += value
        elif name == DROPPED:
            totals.dropped += value
    totals.revisions = dict(revisions)
    return totals


def between(before: Conducted, after: Conducted) -> Conducted:
    """Return what was done between two moments; a count that fell (its file was lost) counts as nothing."""
    return Conducted(
        requests=max(0.0, after.requests - before.requests),
        errors=max(0.0, after.errors - before.errors),
        seconds=max(0.0, after.seconds - before.seconds),
        timed=max(0.0, after.timed - before.timed),
        buckets={limit: max(0.0, count - before.buckets.get(limit, 0.0)) for limit, count in after.buckets.items()},
    )


def quantile(buckets: Mapping[float, float], share: float) -> float | None:
    """Return the value below which that share of the observations lies; None if there are none.

    Inside a bucket observations are taken as spread evenly, as in Prometheus' ``histogram_quantile``; above the last
    limit that limit is returned.
    """
    total = sum(buckets.values())
    if total <= 0:
        return None
    rank, seen, lower = share * total, 0.0, 0.0
    for limit in sorted(buckets):
        count = buckets[limit]
        if seen + count >= rank and count > 0:
            return lower if math.isinf(limit) else lower + (limit - lower) * (rank - seen) / count
        seen += count
        lower = lower if math.isinf(limit) else limit
    return lower


def read_usage(pid: int) -> Usage | None:
    """Return what a process uses; None where it is gone, or the system does not tell."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    except (OSError, IndexError, ValueError):
        return None
    return Usage((int(stat[11]) + int(stat[12])) / _TICKS, pages * _PAGE, int(stat[17]))


def tidy(folder: Path, alive: Collection[int]) -> None:
    """Forget gauges of processes that are gone, and put their counts together once they are many."""
    dead = [path for path in folder.glob("*.db") if _pid(path) not in {0, *alive}]
    for path in dead:
        if path.name.startswith("gauge_live"):
            path.unlink(missing_ok=True)
    for kind in ("counter", "histogram"):
        files = [path for path in dead if path.name.startswith(f"{kind}_")]
        if len(files) > MOST_DEAD:
            _put_together(folder / f"{kind}_0.db", files)


def _put_together(target: Path, files: Collection[Path]) -> None:
    """Write the sums into one file. Between the two steps a reader sees less, never the same twice."""
    sums: defaultdict[bytes, float] = defaultdict(float)
    for path in (target, *files):
        for raw, value in _entries(path):
            sums[raw] += value
    body = b"".join(_packed(raw, value) for raw, value in sums.items())
    unfinished = target.with_suffix(".part")
    unfinished.write_bytes(struct.pack("ii", 8 + len(body), 0) + body)
    for path in files:
        path.unlink(missing_ok=True)
    unfinished.replace(target)


def _packed(raw: bytes, value: float) -> bytes:
    padded = raw + b" " * (8 - (len(raw) + 4) % 8)
    return struct.pack(f"i{len(padded)}sdd", len(raw), padded, value, 0.0)


def _files(folder: Path, kinds: Iterable[str]) -> list[Path]:
    return [path for kind in kinds for path in folder.glob(f"{kind}_*.db")]


def _sums(files: Iterable[Path]) -> dict[_Key, float]:
    sums: defaultdict[_Key, float] = defaultdict(float)
    for path in files:
        for raw, value in _entries(path):
            sums[_parsed(raw)] += value
    return sums


def _entries(path: Path) -> list[tuple[bytes, float]]:
    """Return the keys and values of one file; what its process has not finished writing is left out."""
    try:
        with path.open("rb") as file:
            head = file.read(8)
            used = struct.unpack("i", head[:4])[0] if len(head) == 8 else 0
            data = file.read(max(0, used - 8))
    except OSError:
        return []
    found: list[tuple[bytes, float]] = []
    place = 0
    while place + 4 <= len(data):
        length = struct.unpack_from("i", data, place)[0]
        value_at = place + 4 + length + (8 - (length + 4) % 8)
        if length <= 0 or value_at + 16 > len(data):
            break
        found.append((data[place + 4 : place + 4 + length], struct.unpack_from("d", data, value_at)[0]))
        place = value_at + 16
    return found


@lru_cache(maxsize=4096)
def _parsed(raw: bytes) -> _Key:
    """Return a sample's name and labels."""
    try:
        _, name, labels, _ = json.loads(raw)
        return str(name), tuple(sorted((str(label), str(value)) for label, value in labels.items()))
    except (ValueError, TypeError, AttributeError):
        return "", ()


def _pid(path: Path) -> int:
    text = path.stem.rpartition("_")[2]
    return int(text) if text.isdecimal() else 0
