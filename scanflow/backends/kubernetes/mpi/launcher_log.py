"""Parse a launcher's log by rank: ``mpirun`` tags output with its rank, and each rank prints its start and end."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict

from scanflow.backends.kubernetes.api_times import parse_epoch_s
from scanflow.backends.kubernetes.pod_logs import LogLine
from scanflow.backends.rank_files import PLAN, get_rank_file
from scanflow.files.private import create_private_folder, open_private
from scanflow.processes.shared_files import write_atomically

REPORT_PREFIX: Final = "##scanflow"
"""The prefix of a rank's events: ``began HOST``, and ``ended CODE``."""

_TAG: Final = re.compile(rb"\[(?:[^\]\s]*@)?\d+,(\d+)\]<(stdout|stderr)>:")
_EVENT: Final = re.compile(rb"^(.*?)" + REPORT_PREFIX.encode() + rb" (began|ended) (\S+)\s*$", re.DOTALL)
_STATE: Final = "ranks.json"
_FORMER_STATE: Final = "told.json"
"""What an earlier version called the same."""

RankStream = tuple[int, str]
"""A rank, and ``stdout`` or ``stderr``."""


@dataclass(slots=True)
class RankLog:
    """Lines of a launcher's log, by rank and stream."""

    ranks: dict[RankStream, bytes] = field(default_factory=dict)

    whole: dict[str, bytes] = field(default_factory=lambda: {"stdout": b"", "stderr": b""})
    """The output of all ranks, each line prefixed with its rank; ``mpirun``'s own is standard error."""

    began: dict[int, tuple[str, str]] = field(default_factory=dict)
    """By rank: when, and on which host."""

    ended: dict[int, tuple[str, int]] = field(default_factory=dict)
    """By rank: when, and with which code, as a shell reports it."""

    parts: dict[RankStream, bytes] = field(default_factory=dict)
    """Lines that have not ended yet."""

    def end_line(self, key: RankStream, stamp: str, *, several: bool) -> None:
        """End the current line of a rank's stream, at ``stamp``."""
        (rank, stream), words = key, self.parts.pop(key)
        if (event := _EVENT.match(words)) is not None:
            detail = event[3].decode(errors="replace")
            if event[2] == b"began":
                self.began[rank] = (stamp, detail)
            elif detail.isdecimal():
                self.ended[rank] = (stamp, int(detail))
            if not event[1]:
                return
            words = event[1]  # a last line without an end
        self.ranks[key] = self.ranks.get(key, b"") + words + b"\n"
        self.whole[stream] += (b"[%d] " % rank if several else b"") + words + b"\n"


def parse_log(lines: Iterable[LogLine], *, n_tasks: int, parts: Mapping[RankStream, bytes] | None = None) -> RankLog:
    """Parse lines of a launcher's log. Pure.

    Open MPI writes a tag before whatever it reads at once of a rank, in the middle of a line too: 4096 bytes, or less
    where a program writes its line in parts, as Python without a buffer does, and other ranks may write in between. A
    tag of a rank that the job does not have is what a program printed. One of another rank that it has cannot be told
    from mpirun's.

    Args:
        lines: Of the launcher's pod.
        n_tasks: How many ranks the job has.
        parts: The incomplete lines of earlier calls.
    """
    log = RankLog(parts=dict(parts or {}))
    for stamp, text in lines:
        own, tagged = _split_tagged(text, n_tasks)
        if own or not tagged:
            log.whole["stderr"] += own + b"\n"
        for key, words in tagged:
            log.parts[key] = log.parts.get(key, b"") + words
        if tagged:  # what is tagged last ends with the line
            log.end_line(tagged[-1][0], stamp, several=n_tasks > 1)
    return log


def _split_tagged(text: bytes, n_tasks: int) -> tuple[bytes, list[tuple[RankStream, bytes]]]:
    """Return what stands before the first tag of a line, and what follows each."""
    tags = [tag for tag in _TAG.finditer(text) if int(tag[1]) < n_tasks]
    ends = [*(tag.start() for tag in tags), len(text)]
    pieces = [((int(tag[1]), tag[2].decode()), text[tag.end() : end]) for tag, end in zip(tags, ends[1:], strict=True)]
    return text[: ends[0]], pieces


class ObservedRanks(BaseModel):
    """The observed state of a job's ranks."""

    model_config = ConfigDict(frozen=True, ser_json_bytes="base64", val_json_bytes="base64")

    until: str = ""
    """The time up to which the launcher's log was read."""

    began: dict[int, tuple[str, str]] = {}
    """By rank: when, and on which host."""

    ended: dict[int, tuple[str, int]] = {}
    """By rank: when, and with which code."""

    nodes: dict[str, str] = {}
    """The node of each host."""

    parts: tuple[tuple[RankStream, bytes], ...] = ()
    """Lines that have not ended yet."""

    @property
    def seconds(self) -> float | None:
        """From the first rank's start to the last one's end; None: none has ended."""
        if not (self.began and self.ended):
            return None
        began, ended = (min(at for at, _ in self.began.values()), max(at for at, _ in self.ended.values()))
        return parse_epoch_s(ended) - parse_epoch_s(began)


class RankOutput:
    """The files of a job's ranks, and of all of them, which grow with the launcher's log."""

    def __init__(self, folder: Path, attempt: Path) -> None:
        self._folder, self._attempt = folder, attempt

    def read(self) -> ObservedRanks:
        """Return the observed state of the ranks."""
        for name in (_STATE, _FORMER_STATE):
            with suppress(FileNotFoundError):
                return ObservedRanks.model_validate_json((self._folder / name).read_bytes())
        return ObservedRanks()

    def add(self, lines: list[LogLine], *, over: bool = False) -> None:
        """Append new lines of the log; ``over``: the last ones."""
        before = self.read()
        if not lines and not (over and before.parts):
            return
        log = parse_log(lines, n_tasks=self.n_tasks, parts=dict(before.parts))
        until = lines[-1].stamp if lines else before.until
        for key in list(log.parts) if over else ():
            log.end_line(key, until, several=self.n_tasks > 1)
        create_private_folder(self._attempt)
        for (rank, stream), data in log.ranks.items():
            _append(get_rank_file(self._folder, rank, stream), data)
        for stream, data in log.whole.items():
            _append(self._attempt / f"{stream}.log", data)
        for rank, (_, code) in log.ended.items():
            write_atomically(self._folder / f"{rank}.exit", str(code).encode())
        began, ended = {**before.began, **log.began}, {**before.ended, **log.ended}
        parts = tuple(log.parts.items())
        self._save(ObservedRanks(until=until, began=began, ended=ended, nodes=before.nodes, parts=parts))

    def record_nodes(self, nodes: Mapping[str, str]) -> None:
        """Record the node of each rank that has begun. ``nodes``: by host, as far as known."""
        before = self.read()
        observed = before.model_copy(update={"nodes": {**before.nodes, **nodes}})
        if observed != before:
            self._save(observed)
        document = json.loads((self._folder / PLAN).read_text(encoding="utf-8"))
        ranks = document["ranks"]
        hosts = {rank: host for rank, (_, host) in observed.began.items()}
        placed_ranks = [
            {**rank, "node": observed.nodes.get(hosts.get(rank["rank"], ""), rank["node"])} for rank in ranks
        ]
        if placed_ranks != ranks:
            write_atomically(self._folder / PLAN, json.dumps({**document, "ranks": placed_ranks}).encode())

    def _save(self, observed: ObservedRanks) -> None:
        write_atomically(self._folder / _STATE, observed.model_dump_json().encode())

    @property
    def n_tasks(self) -> int:
        """The number of ranks; 0 before they are planned."""
        try:
            return len(json.loads((self._folder / PLAN).read_text(encoding="utf-8"))["ranks"])
        except (FileNotFoundError, ValueError):
            return 0

    def read_own_lines(self, most: int) -> str:
        """Return the end of the standard error of ``mpirun`` and the ranks."""
        file = self._attempt / "stderr.log"
        return file.read_bytes()[-most:].decode("utf-8", errors="replace").strip() if file.exists() else ""

    def write_notes(self, lines: Iterable[str]) -> None:
        """Append notes to the output of all ranks."""
        create_private_folder(self._attempt)
        _append(self._attempt / "stdout.log", "".join(f"{line}\n" for line in lines).encode())

    @property
    def size(self) -> int:
        """Bytes that all ranks wrote."""
        return sum(file.stat().st_size for file in self._attempt.glob("*.log"))


def _append(path: Path, data: bytes) -> None:
    if data:
        with open_private(path, "ab") as file:
            file.write(data)
