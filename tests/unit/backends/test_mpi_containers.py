"""Ranks in containers on one machine: the command of each runtime, and a clear refusal where there is none."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import scanflow as sf
from scanflow.backends.local.mpi.containers import build_container_command, get_runtime
from scanflow.errors import InvalidError, NotFoundError, UnsupportedError

ARGV = ["/opt/hpcc", "-n", "4"]


def test_a_rank_in_podman_has_the_hosts_network_memory_and_variables() -> None:
    command = build_container_command("podman", "/usr/bin/podman", "team/mpi:1", ARGV, "/app", root=False)
    assert command[:4] == ["/usr/bin/podman", "run", "--rm", "--env-host"]
    assert {"--network=host", "--ipc=host", "--pid=host", "--userns=keep-id", "--volume=/tmp:/tmp"} <= set(command)
    assert command[-len(ARGV) :] == ARGV
    assert command[-len(ARGV) - 6 : -len(ARGV) - 3] == ["--workdir=/app", "team/mpi:1", "sh"]
    assert "--userns=keep-id" not in build_container_command("podman", "podman", "i", ARGV, "/app", root=True)


@pytest.mark.parametrize("runtime", ["apptainer", "singularity"])
def test_a_rank_in_apptainer_is_a_process_with_another_root(runtime: Any) -> None:
    command = build_container_command(runtime, f"/usr/bin/{runtime}", "mpi.sif", ARGV, "/app")
    assert command == [f"/usr/bin/{runtime}", "exec", "--bind", "/app", "--pwd", "/app", "mpi.sif", *ARGV]


@pytest.mark.parametrize(("runtime", "advice"), [("podman", "apt-get install podman"), ("apptainer", "apptainer.org")])
def test_a_runtime_that_is_not_installed_is_refused_with_what_to_do(runtime: Any, advice: str) -> None:
    with pytest.raises(NotFoundError, match=f"sets runtime='{runtime}', which is not installed here.*{advice}"):
        get_runtime(runtime, name="dgemm", which=lambda _: None)


def job(folder: Path, **fields: Any) -> sf.Application:
    options: dict[str, Any] = {"n_tasks": 2, "oversubscribe": True, "flavor": "openmpi", "image": "mpi.sif", **fields}
    workflow = sf.Workflow(name="job", type="mpi", nodes=[sf.MPIWorkload(name="echo", mainfile="/opt/echo", **options)])
    return sf.Application(name="hpc", app_dir=folder, workflows=[workflow])


def test_an_image_needs_a_runtime_and_a_runtime_an_image(home: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match=r"has a runtime for containers, but no image"):
        job(tmp_path, image=None, runtime="podman")
    with pytest.raises(UnsupportedError, match=r"does not support image without a runtime"):
        sf.Client(progress=False).plan(job(tmp_path), "job")


def test_what_one_machine_cannot_honour_of_an_affinity_is_refused(home: Path, tmp_path: Path) -> None:
    app = job(tmp_path, runtime="apptainer", affinity=sf.Affinity(node_selector={"disk": "ssd"}))
    with pytest.raises(UnsupportedError, match=r"affinity\.node_selector is not supported"):
        sf.Client(progress=False).plan(app, "job")


@pytest.mark.mpi
@pytest.mark.processes
@pytest.mark.skipif(shutil.which("mpirun.openmpi") is None, reason="Open MPI is not installed")
def test_mpirun_starts_a_container_for_each_rank(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Stands for the runtime: it says how it was called, and does not run what an image would have.
    stand_in = tmp_path / "bin" / "apptainer"
    stand_in.parent.mkdir()
    stand_in.write_text('#!/bin/sh\necho "$SCANFLOW_MPI_RANK: $*"\n')
    stand_in.chmod(0o755)
    monkeypatch.setenv("PATH", f"{stand_in.parent}:{os.environ['PATH']}")
    client = sf.Client(progress=False)
    run = client.run(job(tmp_path, runtime="apptainer", parameters={"n": 4}), "job")
    assert run.state == "succeeded"
    assert client.logs("echo.1") == f"1: exec --bind {tmp_path} --pwd {tmp_path} mpi.sif /opt/echo --n 4\n"
