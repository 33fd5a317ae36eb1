"""``make bench-gpu`` without a GPU: the tuner's pick beside all candidates, and the tables that it writes."""

from __future__ import annotations

from pathlib import Path

from scanflow.accelerators.accelerator_port import Inventory
from scanflow.errors import UnavailableError
from scanflow.placement.device_cuts import DeviceBudget
from scanflow.placement.topology import uniform
from scanflow.testing.accelerators import make_gpu
from scanflow.tuning.candidates import Candidate, SearchSpace
from scanflow.tuning.goals import Measurement
from tests.device.__main__ import CUTS_TABLE, PAGE, SEARCH_TABLE, write_table
from tests.device.tuned_cuts import compare_searches
from tests.unit.tuning.conftest import SimulatedBench

DEFAULT = Candidate(instances=1, cores=4.0, gpu=1)
SPACE = SearchSpace(
    topology=uniform(sockets=1, cores_per_socket=4),
    cores=4,
    batches=(16, 64),
    affinities=("any",),
    gpus=DeviceBudget(gpus=1, inventory=Inventory(devices=(make_gpu(0),))),
)


def rate(candidate: Candidate) -> float:
    return 100 * candidate.instances * (1.0 if candidate.batch is None else 0.9)


class Full(SimulatedBench):
    """A GPU on which four instances find no memory."""

    def measure(self, candidate: Candidate) -> Measurement:
        if candidate.instances == 4:
            raise UnavailableError("out of memory")
        return super().measure(candidate)


def test_the_tuner_s_pick_is_measured_beside_the_best_of_all_candidates() -> None:
    bench = Full(rate)
    compared = compare_searches(SPACE, DEFAULT, bench, clock=bench.clock)
    rows = list(compared.build_rows())
    assert [row[:3] for row in rows] == [
        ("as it is: 1 × 4 cores, gpu=1, any", "100", "50%"),
        ("tuner: 2 × 2 cores, gpu=0.5, any", "200", "100%"),
        ("all: 2 × 2 cores, gpu=0.5, any", "200", "100%"),
    ]
    assert int(rows[1][4]) < int(rows[2][4]) == len(SPACE.whole)
    assert {value for candidate, value in compared.rates.items() if candidate.instances == 4} == {0.0}


def test_a_table_is_written_between_its_comments_alone(tmp_path: Path) -> None:
    page = tmp_path / "gpu.md"
    page.write_text(PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    for name in (CUTS_TABLE, SEARCH_TABLE):
        write_table(page, name, f"today, {name}", ("a", "b"), [("1", "2")])
    lines = page.read_text(encoding="utf-8").splitlines()
    for name in (CUTS_TABLE, SEARCH_TABLE):
        begin = lines.index(f"<!-- {name}: begin -->")
        assert lines[begin + 1 : begin + 7] == [
            f"today, {name}.", "", "| a | b |", "| --- | --- |", "| 1 | 2 |", f"<!-- {name}: end -->",
        ]  # fmt: skip
    assert lines[-1] == PAGE.read_text(encoding="utf-8").splitlines()[-1]
