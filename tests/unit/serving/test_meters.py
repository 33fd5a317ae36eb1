"""Figures are asked of processes of their own, since prometheus_client chooses its storage once a process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys
from scanflow_serving.meters import Meters
meters = Meters(sys.argv[1], "shop")
one = meters.revision("r1")
one.answered(200, 0.002)
one.answered(500, 0.2)
one.node("model").worked(0.001)
one.node("model").failed()
one.node("model").batch(8)
meters.refused("queue")
meters.in_flight(3)
meters.recorded(5)
meters.dropped(2)
text, kind = meters.render()
assert kind.startswith("text/plain")
print(text.decode())
if sys.argv[2] == "close":
    meters.close()
    print("---", meters.render()[0].decode())
"""


def figures(folder: Path | str, how: str = "stay") -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM, str(folder), how],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_two_instances_are_counted_together(tmp_path: Path) -> None:
    figures(tmp_path)
    text = figures(tmp_path)
    for line in (
        'scanflow_requests_total{code="200",revision="r1",service="shop"} 2.0',
        'scanflow_requests_total{code="500",revision="r1",service="shop"} 2.0',
        'scanflow_request_seconds_bucket{le="0.0025",revision="r1",service="shop"} 2.0',
        'scanflow_request_seconds_count{revision="r1",service="shop"} 4.0',
        'scanflow_node_errors_total{node="model",revision="r1",service="shop"} 2.0',
        'scanflow_batch_rows_sum{node="model",revision="r1",service="shop"} 16.0',
        'scanflow_refused_total{reason="queue",service="shop"} 2.0',
        'scanflow_recorded_total{service="shop"} 10.0',
        'scanflow_dropped_total{service="shop"} 4.0',
        'scanflow_in_flight{service="shop"} 6.0',
    ):
        assert line in text


def test_an_instance_that_ends_takes_its_gauges_and_leaves_its_counts(tmp_path: Path) -> None:
    after = figures(tmp_path, "close").partition("---")[2]
    assert "scanflow_recorded_total" in after
    assert "scanflow_in_flight{" not in after


def test_without_a_folder_an_instance_counts_for_itself() -> None:
    assert 'scanflow_recorded_total{service="shop"} 5.0' in figures("")
