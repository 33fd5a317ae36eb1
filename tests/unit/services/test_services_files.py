"""What a service keeps in its folder besides what is wanted: attempts, judgements, predictions, ports."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from scanflow.backends.canary_analysis import RevisionStats
from scanflow.backends.local.services.supervisor.attempts import (
    describe_failure,
    list_attempt_numbers,
    prune,
    rotate_log,
)
from scanflow.backends.local.services.supervisor.canary_traffic import CanaryAnalysis
from scanflow.backends.local.services.supervisor.listener import open_listening_socket, open_reserving_socket
from scanflow.backends.recorder import upload_files, upload_until_exit
from scanflow.backends.service_metrics import Totals
from scanflow.backends.service_records import CanaryPolicy, Shape
from scanflow.backends.service_spec import ServiceSpec
from scanflow.errors import InvalidError, UnavailableError
from scanflow.instance_messages import ModelFiles, Node, Revision
from scanflow.processes.ports import FIRST_PORT, choose_port, is_free
from scanflow.processes.shims import Exit
from tests.waiting import patient

# Attempts


def test_why_an_instance_ended_is_reported_with_its_own_message(tmp_path: Path) -> None:
    assert describe_failure(tmp_path, Exit(exit_code=3)) == "it exited with code 3"
    (tmp_path / "stderr.log").write_text("Traceback\nValueError: no weights\n\n")
    assert describe_failure(tmp_path, Exit(exit_code=1)) == "it exited with code 1: ValueError: no weights"
    assert describe_failure(tmp_path, Exit(exit_code=None, signal=9)) == "it was killed by signal 9 (SIGKILL)"
    (tmp_path / "failure.json").write_text(json.dumps({"error": "no such class"}))
    assert describe_failure(tmp_path, Exit(exit_code=78)) == "no such class"


def test_logs_are_bounded_and_the_last_part_is_kept(tmp_path: Path) -> None:
    log = tmp_path / "stdout.log"
    with log.open("ab") as writer:
        writer.write(b"a" * 100)
        writer.flush()
        rotate_log(tmp_path, at_most=50)
        writer.write(b"b")
    assert (tmp_path / "stdout.log.1").read_bytes() == b"a" * 100
    assert log.read_bytes() == b"b"


def test_only_the_last_attempts_are_kept(tmp_path: Path) -> None:
    for number in range(1, 12):
        (tmp_path / str(number)).mkdir()
    prune(tmp_path)
    assert list_attempt_numbers(tmp_path) == [9, 10, 11]


# CanaryPolicy over time


def definition() -> ServiceSpec:
    def revision(number: int, weight: float) -> Revision:
        files = ModelFiles(name="digits", version=number, path="/models")
        return Revision(id=f"r{number}", nodes=(Node(name="m", model=files),), weight=weight)

    return ServiceSpec(
        app="a",
        team="t",
        workflow="w",
        app_dir="/",
        deployment=1,
        serves=2,
        shape=Shape(),
        revisions=(revision(1, 0.5), revision(2, 0.5)),
        policy=CanaryPolicy(after_requests=10),
        python="python",
    )


def test_an_analysis_counts_from_its_beginning_whoever_looks(tmp_path: Path) -> None:
    path = tmp_path / "canary.json"
    before = Totals({"r1": RevisionStats(requests=1000, errors=900), "r2": RevisionStats(requests=5, buckets={0.1: 5})})
    first = CanaryAnalysis(path).decide(definition(), before, wall=100)
    assert first is not None
    assert first.decision == "wait"
    after = Totals({"r1": RevisionStats(requests=1010, errors=900), "r2": RevisionStats(requests=15, errors=1)})
    verdict = CanaryAnalysis(path).decide(definition(), after, wall=101)
    assert verdict is not None
    assert (verdict.decision, verdict.reason[:10]) == ("revert", "errors 0.1")
    assert CanaryAnalysis(path).decide(definition().with_changes(policy=None), after, wall=101) is None


# Predictions


@pytest.fixture
def recorded_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "recorded"
    folder.mkdir()
    for number in range(3):
        np.savez(
            folder / f"{number}.npz",
            time=np.array([1.0, 2.0]),
            revision=np.array(["r1", "r2"]),
            models=np.array(["models:/digits/2"]),
        )
    (folder / "3.npz.part").touch()
    return folder


def test_predictions_are_taken_once_and_then_deleted(recorded_folder: Path) -> None:
    metrics_logged: list[tuple[str, Mapping[str, float], Mapping[str, str]]] = []

    def log(*, file: Path, metrics: Mapping[str, float], tags: Mapping[str, str]) -> None:
        metrics_logged.append((file.name, metrics, tags))

    assert upload_files(recorded_folder, log, ended=threading.Event(), idle_s=0.02, poll_s=0.01) == 3
    assert [name for name, _, _ in metrics_logged] == ["0.npz", "1.npz", "2.npz"]
    assert metrics_logged[0][1] == {"predictions": 2.0, "first": 1.0, "last": 2.0}
    assert metrics_logged[0][2] == {"scanflow.revision": "r1,r2", "scanflow.model_version": "models:/digits/2"}
    assert [path.name for path in recorded_folder.iterdir()] == ["3.npz.part"]


def test_predictions_that_the_tracker_does_not_take_stay(recorded_folder: Path) -> None:
    def log(*, file: Path, metrics: Mapping[str, float], tags: Mapping[str, str]) -> None:
        raise UnavailableError("down")

    with pytest.raises(UnavailableError):
        upload_files(recorded_folder, log, ended=threading.Event(), idle_s=0.02, poll_s=0.01)
    assert len(list(recorded_folder.glob("*.npz"))) == 3


def test_who_records_beside_an_instance_ends_after_it_and_has_tried_again(recorded_folder: Path) -> None:
    ended, messages, taken = threading.Event(), list[str](), list[str]()
    late = recorded_folder / "late.npz"
    instance = os.open(recorded_folder, os.O_RDONLY)
    fcntl.flock(instance, fcntl.LOCK_SH)

    def log(*, file: Path, metrics: Mapping[str, float], tags: Mapping[str, str]) -> None:
        ended.set()
        if not messages:
            raise UnavailableError("down")
        taken.append(file.name)
        if file.name == "2.npz":  # the instance writes its last, and ends
            shutil.copy(recorded_folder / "3.npz.part", late)
            os.close(instance)

    np.savez(recorded_folder / "3", time=np.array([3.0]))
    (recorded_folder / "3.npz").rename(recorded_folder / "3.npz.part")
    upload_until_exit(recorded_folder, log, ended=ended, tell=messages.append, poll_s=0.01)
    assert messages == ["Predictions are queued until the tracker is available: UnavailableError: down"]
    assert taken == ["0.npz", "1.npz", "2.npz", "late.npz"]
    assert list(recorded_folder.glob("*.npz")) == []


# Ports


@pytest.fixture
def own_notes_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.mark.usefixtures("own_notes_file")
def test_two_homes_do_not_choose_the_same_port() -> None:
    first = choose_port(None, host="127.0.0.1", taken=(), what="HTTP")
    second = choose_port(None, host="127.0.0.1", taken=(), what="HTTP")
    assert FIRST_PORT <= first < second


@pytest.mark.usefixtures("own_notes_file")
def test_a_port_that_is_in_use_is_refused() -> None:
    with open_listening_socket("127.0.0.1", 0) as other:
        port = other.getsockname()[1]
        with pytest.raises(InvalidError, match=f"The port {port} for HTTP is in use"):
            choose_port(port, host="127.0.0.1", taken=(), what="HTTP")
        with pytest.raises(UnavailableError, match="cannot be bound"):
            open_listening_socket("127.0.0.1", port)


def test_a_port_that_is_reserved_is_nobodys_but_those_who_share_it() -> None:
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        host, port = listening.getsockname()
        with socket.create_connection((host, port)) as caller:
            listening.accept()[0].close()  # first, so that the port is in TIME_WAIT afterwards
            assert caller.recv(1) == b""
    with open_reserving_socket(host, port):
        assert not is_free(host, port)
        with pytest.raises(UnavailableError, match=f"{port} of {host} cannot be bound"):
            open_listening_socket(host, port)
        for _ in range(2):
            with socket.socket() as sharing:
                sharing.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                sharing.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                sharing.bind((host, port))
                sharing.listen()
                with socket.create_connection((host, port), timeout=patient(30)):
                    sharing.accept()[0].close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, port), timeout=patient(30))
    assert is_free(host, port)
