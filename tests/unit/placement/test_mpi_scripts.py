"""The plan of an MPI job as text, and the commands that print it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import scanflow as sf
from scanflow.backends.local.mpi.profiling.classify import Profile
from scanflow.errors import UnsupportedError
from scanflow.placement.mpi.groups import ClusterNode
from scanflow.placement.mpi.job_plan import MPIPlan, plan_job
from scanflow.placement.mpi.scripts import format_mpirun_script, format_rankfile, format_sbatch_script
from scanflow.placement.topology import Core, NumaNode, Topology
from scanflow_client.cli.command_tree import app

FOUR = Topology(cores=tuple(Core(cpus=(cpu,)) for cpu in range(4)), nodes=(NumaNode(id=0, cpus=(0, 1, 2, 3)),))


def make_plan(nodes: int = 2, topology: Topology | None = None, **fields: Any) -> tuple[sf.MPIWorkload, MPIPlan]:
    options: dict[str, Any] = {
        "name": "dgemm",
        "mainfile": "hpcc",
        "n_tasks": 8,
        "n_nodes": nodes,
        "profile": "cpu",
        **fields,
    }
    workload = sf.MPIWorkload(**options)
    there = [ClusterNode(name=f"node{place}", cores=4) for place in range(nodes)]
    return workload, plan_job(workload, there, topologies={node.name: topology for node in there} if topology else None)


def test_a_slurm_batch_file_has_the_nodes_and_tasks_of_the_plan() -> None:
    workload, plan = make_plan(
        policy="granularity", affinity="cpumem", timeout="90m", resources_per_task=sf.Resources(cpu=1, memory="2Gi")
    )
    assert format_sbatch_script(plan, workload, ["./hpcc", "a b"]).splitlines() == [
        "#!/bin/bash",
        "#SBATCH --job-name=dgemm",
        "#SBATCH --nodes=2",
        "#SBATCH --ntasks=8",
        "#SBATCH --ntasks-per-node=4",
        "#SBATCH --cpus-per-task=1",
        "#SBATCH --mem-per-cpu=2048M",
        "#SBATCH --time=01:30:00",
        "# 8 tasks in 8 workers on 2 nodes: the program is cpu-bound, and the policy is 'granularity' (Algorithm 2)",
        "srun --cpu-bind=cores --distribution=cyclic ./hpcc 'a b'",
    ]


def test_a_rank_file_has_each_ranks_node_and_cpus() -> None:
    _, plan = make_plan(topology=FOUR, affinity="cpumempin")
    assert format_rankfile(plan).splitlines()[3:5] == ["rank 3=node0 slot=3", "rank 4=node1 slot=0"]
    assert format_rankfile(make_plan()[1]).splitlines()[0] == "rank 0=node0 slot=*"


@pytest.mark.processes
@pytest.mark.parametrize(
    ("topology", "fields", "part"),
    [
        (FOUR, {"affinity": "cpumempin"}, "--rankfile"),
        (None, {"affinity": "cpumem"}, "--map-by node --bind-to core"),
        (None, {"n_tasks": 16, "oversubscribe": True}, "--oversubscribe --mca mpi_yield_when_idle 1"),
    ],
)
def test_a_shell_script_starts_it_with_open_mpi(topology: Topology | None, fields: dict[str, Any], part: str) -> None:
    workload, plan = make_plan(topology=topology, **fields)
    text = format_mpirun_script(plan, ["./hpcc"])
    assert part in text
    assert f"mpirun -np {workload.n_tasks} " in text
    assert "node1 slots=" in text
    subprocess.run(["/bin/sh", "-n"], input=text.encode(), check=True)


def test_the_commands_print_plan_and_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "app.py").write_text(
        "import scanflow as sf\n"
        "job = sf.MPIWorkload(name='dgemm', mainfile='hpcc', n_tasks=16, n_nodes=4, profile='cpu')\n"
        "app = sf.Application(name='hpc', workflows=[sf.Workflow(name='bench', type='mpi', nodes=[job])])\n"
    )
    shown = CliRunner().invoke(app, ["mpi", "plan", "--nodes", "4", "--cores", "8"])
    assert shown.stdout.splitlines()[1] == "ranks 0-3 -> worker 0 on node0 -> any CPU"
    printed = CliRunner().invoke(app, ["mpi", "script", "--nodes", "4", "--kind", "sbatch"])
    assert "#SBATCH --nodes=4" in printed.stdout
    refused = CliRunner().invoke(app, ["mpi", "script", "--kind", "pbs"])
    assert "--kind 'pbs' is not known" in str(refused.exception)


def test_a_profile_is_measured_when_it_is_requested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "app.py").write_text(
        "import scanflow as sf\n"
        "job = sf.MPIWorkload(name='fft', mainfile='fft', n_tasks=2, profile='auto', oversubscribe=True)\n"
        "app = sf.Application(name='hpc', workflows=[sf.Workflow(name='bench', type='mpi', nodes=[job])])\n"
    )
    asked = list[str]()

    def measure_profile(application: sf.Application, workflow: sf.Workflow, folder: Path) -> Profile:
        asked.append(workflow.name)
        return Profile(profile="network", reason="it sends much")

    monkeypatch.setattr("scanflow.backends.local.mpi.job.measure_here", measure_profile)
    plain = CliRunner().invoke(app, ["mpi", "plan"])
    assert "is measured when the job starts" in plain.stdout
    assert not asked
    shown = CliRunner().invoke(app, ["mpi", "plan", "--measure", "--nodes", "2"])
    assert "the program is network-bound, so its tasks stay together" in shown.stdout
    assert shown.stdout.startswith("profile='auto': network-bound: it sends much")
    assert asked == ["bench"]


def test_a_client_plans_what_the_command_does(tmp_path: Path) -> None:
    job = sf.MPIWorkload(name="dgemm", mainfile="hpcc", n_tasks=16, n_nodes=4, profile="cpu")
    bench = sf.Workflow(name="bench", type="mpi", nodes=[job])
    plan = sf.Client(home=tmp_path).plan_job(bench, nodes=4, cores=8)
    assert plan.lines()[0] == "ranks 0-3 -> worker 0 on node0 -> any CPU"
    distant = sf.Client("http://10.1.2.3:46666", token="t" * 32)
    assert distant.plan_job(bench, nodes=4, cores=8) == plan
    with pytest.raises(UnsupportedError, match=r"The nodes of http://10\.1\.2\.3:46666 are not known here\."):
        distant.plan_job(bench)
    small = sf.Workflow(name="small", type="mpi", nodes=[job.replace(n_tasks=1, n_nodes=1)])
    assert sf.Client("http://127.0.0.1:1", token="t" * 32).plan_job(small).ranks[0].node == "localhost"
