"""What a launcher's log holds, by rank: ``mpirun`` puts the rank in front of each line, and each rank tells its end."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict

from scanflow.backends.kubernetes.pod_logs import LogLine
from scanflow.backends.kubernetes.times import epoch_s
from scanflow.backends.rank_files import PLAN, rank_file
from scanflow.private import open_private, private_folder
from scanflow.processes.files import write_atomically

TOLD: Final = "##scanflow"
"""Begins what a rank's shell tells: ``began HOST``, and ``ended CODE``."""

_TAG: Final = re.compile(rb"\[(?:[^\]\s]*@)?\d+,(\d+)\]<(stdout|stderr)>:")
_EVENT: Final = re.compile(rb"^(.*?)" + TOLD.encode() + rb" (began|ended) (\S+)\s*$", re.DOTALL)
_STATE: Final = "told.json"

RankStream = tuple[int, str]
"""A rank, and ``stdout`` or ``stderr``."""


@dataclass(slots=True)
class RankLog:
    """What lines hold, taken apart."""

    ranks: dict[RankStream, bytes] = field(default_factory=dict)

    whole: dict[str, bytes] = field(default_factory=lambda: {"stdout": b"", "stderr": b""})
    """What all ranks wrote, each line with its rank in front; ``mpirun``'s own is standard error."""

    began: dict[int, tuple[str, str]] = field(default_factory=dict)
    """By rank: when, and on which host."""

    ended: dict[int, tuple[str, int]] = field(default_factory=dict)
    """By rank: when, and with which code, as a shell has it."""

    parts: dict[RankStream, bytes] = field(default_factory=dict)
    """Lines that have not ended yet."""

    def end_line(self, key: RankStream, stamp: str, *, several: bool) -> None:
        """Take what a rank wrote until now as a whole line, which ended at ``stamp``."""
        (rank, stream), words = key, self.parts.pop(key)
        if (event := _EVENT.match(words)) is not None:
            told = event[3].decode(errors="replace")
            if event[2] == b"began":
                self.began[rank] = (stamp, told)
            elif told.isdecimal():
                self.ended[rank] = (stamp, int(told))
            if not event[1]:
                return
            words = event[1]  # a last line without an end
        self.ranks[key] = self.ranks.get(key, b"") + words + b"\n"
        self.whole[stream] += (b"[%d] " % rank if several else b"") + words + b"\n"


def parse_log(lines: Iterable[LogLine], *, several: bool, parts: Mapping[RankStream, bytes] | None = None) -> RankLog:
    """Return what a launcher's log holds. Pure.

    Open MPI writes a tag before whatever it reads at once of a rank, in the middle of a line too: 4096 bytes, or less
    where a program writes its line in parts, as Python without a buffer does, and other ranks may write in between.

    Args:
        lines: As the launcher's pod has them.
        several: Whether there is more than one rank.
        parts: The lines that had not ended in what was read before.
    """
    found = RankLog(parts=dict(parts or {}))
    for stamp, text in lines:
        own, *tagged = _TAG.split(text)
        if own or not tagged:
            found.whole["stderr"] += own + b"\n"
        key = None
        for rank, stream, words in zip(tagged[::3], tagged[1::3], tagged[2::3], strict=True):
            key = int(rank), stream.decode()
            found.parts[key] = found.parts.get(key, b"") + words
        if key is not None:  # what is tagged last ends with the line
            found.end_line(key, stamp, several=several)
    return found


class RanksSeen(BaseModel):
    """What is known of a job's ranks."""

    model_config = ConfigDict(frozen=True, ser_json_bytes="base64", val_json_bytes="base64")

    until: str = ""
    """Up to when the launcher's log was read."""

    began: dict[int, tuple[str, str]] = {}
    """By rank: when, and on which host."""

    ended: dict[int, tuple[str, int]] = {}
    """By rank: when, and with which code."""

    nodes: dict[str, str] = {}
    """Of hosts."""

    parts: tuple[tuple[RankStream, bytes], ...] = ()
    """Lines that have not ended yet."""

    @property
    def seconds(self) -> float | None:
        """From the first rank's beginning to the last one's end; None: none has ended."""
        if not (self.began and self.ended):
            return None
        began, ended = (min(at for at, _ in self.began.values()), max(at for at, _ in self.ended.values()))
        return epoch_s(ended) - epoch_s(began)


class RankOutput:
    """The files of a job's ranks, and of all of them, which grow with the launcher's log."""

    def __init__(self, folder: Path, attempt: Path) -> None:
        self._folder, self._attempt = folder, attempt

    def read(self) -> RanksSeen:
        """Return what is known of the ranks until now."""
        try:
            return RanksSeen.model_validate_json((self._folder / _STATE).read_bytes())
        except FileNotFoundError:
            return RanksSeen()

    def add(self, lines: list[LogLine], *, over: bool = False) -> None:
        """Add what was written since; ``over``: nothing more will be."""
        before = self.read()
        if not lines and not (over and before.parts):
            return
        several = self.n_tasks > 1
        found = parse_log(lines, several=several, parts=dict(before.parts))
        until = lines[-1].stamp if lines else before.until
        for key in list(found.parts) if over else ():
            found.end_line(key, until, several=several)
        private_folder(self._attempt)
        for (rank, stream), data in found.ranks.items():
            _append(rank_file(self._folder, rank, stream), data)
        for stream, data in found.whole.items():
            _append(self._attempt / f"{stream}.log", data)
        for rank, (_, code) in found.ended.items():
            write_atomically(self._folder / f"{rank}.exit", str(code).encode())
        began, ended = {**before.began, **found.began}, {**before.ended, **found.ended}
        parts = tuple(found.parts.items())
        self._keep(RanksSeen(until=until, began=began, ended=ended, nodes=before.nodes, parts=parts))

    def place(self, nodes: Mapping[str, str]) -> None:
        """Write down the node of each rank that has begun. ``nodes``: of each host, as far as that is known now."""
        before = self.read()
        seen = before.model_copy(update={"nodes": {**before.nodes, **nodes}})
        if seen != before:
            self._keep(seen)
        document = json.loads((self._folder / PLAN).read_text(encoding="utf-8"))
        ranks = document["ranks"]
        hosts = {rank: host for rank, (_, host) in seen.began.items()}
        now = [{**one, "node": seen.nodes.get(hosts.get(one["rank"], ""), one["node"])} for one in ranks]
        if now != ranks:
            write_atomically(self._folder / PLAN, json.dumps({**document, "ranks": now}).encode())

    def _keep(self, seen: RanksSeen) -> None:
        write_atomically(self._folder / _STATE, seen.model_dump_json().encode())

    @property
    def n_tasks(self) -> int:
        """How many ranks there are; none before they are planned."""
        try:
            return len(json.loads((self._folder / PLAN).read_text(encoding="utf-8"))["ranks"])
        except (FileNotFoundError, ValueError):
            return 0

    def own_lines(self, most: int) -> str:
        """Return the end of what ``mpirun`` itself wrote, and of the ranks' standard error."""
        file = self._attempt / "stderr.log"
        return file.read_bytes()[-most:].decode("utf-8", errors="replace").strip() if file.exists() else ""

    def say(self, lines: Iterable[str]) -> None:
        """Put lines of ours in front of what all ranks wrote."""
        private_folder(self._attempt)
        _append(self._attempt / "stdout.log", "".join(f"{line}\n" for line in lines).encode())

    @property
    def size(self) -> int:
        """Bytes that all ranks wrote."""
        return sum(file.stat().st_size for file in self._attempt.glob("*.log"))


def _append(path: Path, data: bytes) -> None:
    if data:
        with open_private(path, "ab") as file:
            file.write(data)
