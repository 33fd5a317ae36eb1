"""``make bench-gpu``: fill the tables of docs/gpu.md: one GPU, given to one, two and four steps, in turns and by MPS;
and the tuner's pick of its cuts for a service, beside the best of all."""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import scanflow as sf
from scanflow.backends.run_records import RunRecord
from scanflow.placement.device_grants import describe_device
from tests.device import tuned_cuts
from tests.device.machine import DeviceMachine, has_mps, read_inventory, start_mps

CHECKOUT = Path(__file__).resolve().parents[2]
PAGE = CHECKOUT / "docs" / "gpu.md"
CUTS_TABLE, SEARCH_TABLE = "bench-gpu", "bench-gpu-search"
"""The names of the tables, in the comments around them."""

BATCHES = (4, 64)
HEAD = ("cut", "how", "batch", "images/s", "p50, ms", "p99, ms", "processors each", "memory read back, GiB")


@dataclass(frozen=True)
class Cut:
    servers: int
    by_mps: bool = False

    def __str__(self) -> str:
        return f"{self.servers} × {'1' if self.servers == 1 else f'1/{self.servers}'}"

    @property
    def how(self) -> str:
        return "whole" if self.servers == 1 else "MPS" if self.by_mps else "time slicing"


CUTS = (Cut(1), Cut(2), Cut(4), Cut(2, by_mps=True), Cut(4, by_mps=True))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.device", description=__doc__)
    parser.add_argument("--seconds", type=float, default=8.0, help="how long each batch size is measured")
    parser.add_argument("--only", choices=(CUTS_TABLE, SEARCH_TABLE), help="write this table alone")
    parser.add_argument("--page", type=Path, default=PAGE, help="the page whose table is written")
    chosen = parser.parse_args()
    inventory = read_inventory()
    if not inventory.devices or find_spec("torch") is None:
        print(f"no device: not run. {inventory.absence or 'PyTorch is not installed.'}")
        return 0
    described = (
        f"{datetime.now(UTC).date()}, {describe_device(inventory.devices[0])}, driver {inventory.driver}, PyTorch "
        f"{version('torch')}; {chosen.seconds:g} s each"
    )
    if chosen.only != SEARCH_TABLE:
        write_table(chosen.page, CUTS_TABLE, described, HEAD, list(_measure_cuts(chosen.seconds)))
    if chosen.only != CUTS_TABLE:
        how = "MPS" if has_mps() else "time slicing"
        rows = list(tuned_cuts.measure_searches(chosen.seconds / 2).build_rows())
        write_table(chosen.page, SEARCH_TABLE, f"{described}, {how}", tuned_cuts.HEAD, rows)
    print(f"Wrote {chosen.page}")
    return 0


def write_table(page: Path, name: str, described: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Write a table between the two comments with its name."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    table = "\n".join(f"| {' | '.join(row)} |" for row in (head, ("---",) * len(head), *rows))
    text = page.read_text(encoding="utf-8")
    before, after = text.partition(begin)[0], text.partition(end)[2]
    page.write_text(f"{before}{begin}\n{described}.\n\n{table}\n{end}{after}", encoding="utf-8")


def _measure_cuts(seconds: float) -> Iterator[Sequence[str]]:
    for cut in CUTS:
        if cut.by_mps and not has_mps():
            print(f"{cut} by MPS: not run; nvidia-cuda-mps-control is not installed")
            continue
        rows = list(_measure(cut, seconds))
        print(*rows, sep="\n", flush=True)
        yield from rows


def _measure(cut: Cut, seconds: float) -> Iterator[Sequence[str]]:
    with tempfile.TemporaryDirectory(prefix="scanflow-gpu-") as name:
        folder = Path(name)
        shutil.copy(Path(__file__).with_name("gpu_load.py"), folder)
        machine = DeviceMachine(folder)
        server = sf.Executor(
            name="server",
            mainfile="gpu_load.py",
            for_each=list(range(cut.servers)),
            parameters={},
            resources=sf.Resources(cpu=1, gpu=1 if cut.servers == 1 else round(1 / cut.servers, 4)),
            env={
                "LOAD_SERVERS": str(cut.servers),
                "LOAD_READY": str(folder / "ready"),
                "LOAD_BATCHES": " ".join(map(str, BATCHES)),
                "LOAD_SECONDS": str(seconds),
            },
        )
        with _prepare(cut, folder):
            record = machine.run(server)
        if record.state != "succeeded":
            raise SystemExit(f"{cut} failed: {[task.failure for task in record.tasks]}")
        yield from _build_rows(
            cut, record, [json.loads(machine.read_output(record, task.task)) for task in record.tasks]
        )


@contextmanager
def _prepare(cut: Cut, folder: Path) -> Iterator[None]:
    service: AbstractContextManager[None] = start_mps(folder) if cut.by_mps else contextlib.nullcontext()
    with service:
        yield


def _build_rows(cut: Cut, record: RunRecord, results: Sequence[dict[str, Any]]) -> Iterator[Sequence[str]]:
    uses = [use for task in record.tasks for use in task.devices]
    memory = " + ".join("?" if use.peak_bytes is None else f"{use.peak_bytes / 2**30:.1f}" for use in uses)
    for batch in BATCHES:
        measured = [result["batches"][str(batch)] for result in results]
        yield (
            str(cut),
            cut.how,
            str(batch),
            f"{sum(values['per_s'] for values in measured):,.0f}",
            f"{max(values['p50_ms'] for values in measured):.2f}",
            f"{max(values['p99_ms'] for values in measured):.2f}",
            str(results[0]["processors"]),
            memory,
        )


if __name__ == "__main__":
    sys.exit(main())
