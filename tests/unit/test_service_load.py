"""``scanflow load``, before a server that answers as one is told to."""

from __future__ import annotations

import signal
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from scanflow.backends.service_records import ServiceRecord, Shape
from scanflow.errors import InvalidError, UnsupportedError, UsageError
from scanflow.knowledge.memory import MemoryKnowledge
from scanflow.load.arrivals import build_constant_rate
from scanflow.load.load_process import LoadError
from scanflow_client.cli.command_tree import app
from scanflow_client.load_report import LoadReport, LoadSpec, draw_load, format_load
from scanflow_client.predict_io import HttpRequest, PredictRequest
from scanflow_client.service_load import build_trace, load_service, log_report, write_files
from tests.notebooks import render_bundle
from tests.unit.test_load import say, server

pytestmark = pytest.mark.processes

REQUEST = HttpRequest("/infer", b"{}", {"content-type": "application/json"})


def record(url: str) -> ServiceRecord:
    shape = Shape(instances=2)
    return ServiceRecord(name="digits", url=url, app="a", team="t", state="ready", generation=1, shape=shape)


def measure_load(url: str, spec: LoadSpec, **more: Any) -> LoadReport:
    return load_service(record(url.removesuffix("/infer")), REQUEST, spec, **more)


def test_what_became_of_a_load_is_shown_kept_and_drawn(tmp_path: Path) -> None:
    def answer(handler: BaseHTTPRequestHandler, number: int) -> None:
        say(handler, 503 if number == 7 else 200, b"full")

    seen: list[tuple[int, int]] = []
    with server(answer) as url:
        spec = LoadSpec(trace=build_constant_rate(100, 1.2), connections=2)
        report = measure_load(url, spec, observe=lambda *arguments: seen.append(arguments))
    assert seen == sorted(seen)
    assert 0 < len(seen) <= 120
    head, table, reason, bound = format_load(report, bound_s=10.0)
    assert str(head).startswith("120 requests to digits (2 instances, any) in ")
    assert str(head).endswith("over 2 REST connections: 1 failed.")
    assert (reason, bound) == ("  1 × 503: full", "✗ p99 within 10.0 s and none failed: not at this rate")
    cells = dict(zip(table.headers, table.rows[0], strict=True))  # type: ignore[union-attr]
    assert (cells["target/s"], cells["p99.9"]) == ("100", "-"), "of 119 answers none is the slowest of a thousand"
    assert 0 < float(cells["completed/s"]) <= 119 / 1.19
    assert report.summary()["energy_j"] is None
    assert "Its GPUs took 595 J: 5,000 J for 1,000 predictions." in format_load(replace(report, energy_j=595.0))
    files = write_files(report, tmp_path / "out", draw_load(report))
    assert [file.name for file in files] == ["requests.csv", "summary.json", "latency.svg"]
    rows = [line.split(",") for line in files[0].read_text().splitlines()[1:]]
    assert sorted(float(row[0]) for row in rows) == pytest.approx([i / 100 for i in range(120)], abs=1e-5)
    assert [row[3] for row in rows].count("503") == 1
    assert "p99" in files[2].read_text()
    knowledge = MemoryKnowledge()
    run = log_report(knowledge, record(url), report, draw_load(report))
    assert (run.name, run.params["loop"], run.params["shape.instances"]) == ("load-digits", "open", "2")
    assert (run.metrics["requests"], run.metrics["failed"]) == (120, 1)
    artifacts = knowledge.fetch_run_artifacts(run.run_id, tmp_path / "kept")
    assert sorted(artifact.name for artifact in artifacts.iterdir()) == ["latency.svg", "requests.csv", "summary.json"]
    shown = render_bundle(report)["text/html"]
    assert "<td" in shown
    assert "1 × 503: full" in shown
    assert "<svg" in shown


def test_a_load_that_is_interrupted_keeps_what_was_measured() -> None:
    def interrupt(finished: int, _failed: int) -> None:
        if finished >= 20:
            signal.raise_signal(signal.SIGINT)

    with server(lambda handler, number: say(handler)) as url:
        report = measure_load(url, LoadSpec(seconds=600.0, connections=1), observe=interrupt)
    assert report.interrupted
    assert report.result.requests >= 20
    assert report.result.failed == 0
    assert report.summary()["interrupted"] is True
    assert "It was interrupted." in str(format_load(report, bound_s=None)[0])


@pytest.mark.parametrize(
    ("inputs", "rows"),
    [([[1, 2], [3, 4], [5, 6]], 3), ({"a": [1, 2], "b": [3, 4]}, 2), (7, 1), (None, 1), (np.array(7.0), 1)],
)
def test_a_request_s_samples_are_the_rows_of_its_first_input(inputs: Any, rows: int) -> None:
    assert PredictRequest(inputs=inputs).rows == rows


def test_samples_a_second_are_reported_where_a_request_has_several() -> None:
    with server(lambda handler, number: say(handler)) as url:
        report = measure_load(url, LoadSpec(trace=build_constant_rate(20, 1), connections=1, rows=8))
    _, table = format_load(report, bound_s=None)
    assert list(table.headers[:3]) == ["target/s", "completed/s", "samples/s"]  # type: ignore[union-attr]
    assert report.summary()["samples_rate"] == pytest.approx(8 * report.rate)


def test_a_load_of_which_nothing_succeeds_has_no_latency_and_is_reported_all_the_same() -> None:
    with server(lambda handler, number: say(handler, 500, b"broken")) as url:
        report = measure_load(url, LoadSpec(trace=build_constant_rate(20, 1), connections=1))
    _, table, reason, bound = format_load(report, bound_s=1.0)
    assert set(table.rows[0][2:]) == {"-"}  # type: ignore[union-attr]
    assert (reason, str(bound)[0]) == ("  20 × 500: broken", "✗")
    assert (report.summary()["p50_s"], report.summary()["rate"]) == (None, 0.0)
    assert "<svg" in draw_load(report)


@pytest.mark.parametrize(
    ("url", "spec", "error", "message"),
    [
        ("ftp://x.example", LoadSpec(), UnsupportedError, "over http:// and https:// only"),
        ("http://127.0.0.1:1", LoadSpec(connections=0), InvalidError, "--connections 16"),
        ("http://127.0.0.1:1", LoadSpec(seconds=0), InvalidError, "--seconds 10"),
        ("http://127.0.0.1:1", LoadSpec(trace=build_constant_rate(0.001, 1e6)), InvalidError, "at most a day"),
        ("http://127.0.0.1:1", LoadSpec(poisson=1), InvalidError, "--rate 50"),
        ("http://127.0.0.1:1", LoadSpec(), LoadError, "could not be started"),
    ],
)
def test_a_load_that_cannot_be_is_refused(url: str, spec: LoadSpec, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        measure_load(url, spec)


def test_what_a_rate_over_time_is_said_by(tmp_path: Path) -> None:
    (tmp_path / "day.csv").write_text("seconds,rate\n0,5\n2,5\n")
    file = str(tmp_path / "day.csv")
    assert build_trace(None, None, 5.0) is None
    assert build_trace(5.0, None, None) == build_constant_rate(5.0, 10.0)
    assert build_trace(None, file, None) == build_constant_rate(5.0, 2.0)
    for words in ((5.0, "steps:1", None), (None, file, 3.0), (None, str(tmp_path / "no.csv"), None)):
        with pytest.raises(InvalidError):
            build_trace(*words)


@pytest.mark.parametrize(
    ("words", "message"),
    [("--scale 0.1", "add --mlperf SCENARIO"), ("--mlperf server --poisson 1", "leave out --trace, --poisson")],
)
def test_options_that_would_say_nothing_are_refused(words: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        CliRunner().invoke(app, ["load", "digits", *words.split()], catch_exceptions=False)
