"""What the embedded backend makes of an MPI workflow, before anything is started."""

from __future__ import annotations

import json
import os
import struct
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

import scanflow as sf
from scanflow.backends.local.mpi import launcher
from scanflow.backends.local.mpi.job import as_batch, resolve_job
from scanflow.backends.local.mpi.job_step import count_ranks
from scanflow.backends.local.mpi.mpirun import (
    Mpirun,
    build_command,
    find_linked_flavor,
    get_launcher,
    read_needed_libraries,
)
from scanflow.backends.local.mpi.processes import describe_failure
from scanflow.backends.local.mpi.rank_devices import assign_devices, build_rank_variables
from scanflow.backends.rank_files import build_rank_tasks, describe_running_ranks, exit_status
from scanflow.backends.run_definition import RunDefinition
from scanflow.backends.run_records import TaskRecord
from scanflow.errors import InvalidError, NotFoundError, UnsupportedError
from scanflow.names import StepName
from scanflow.placement.cpulist import format_cpus
from scanflow.placement.device_grants import DeviceGrant, build_device_variables
from scanflow.placement.mpi.local_plan import plan_local_job
from scanflow.placement.topology import Core, NumaNode, Topology
from scanflow.text.failures import parse_failure


def machine(sockets: int = 1, cores: int = 4) -> Topology:
    numbers = range(sockets * cores)
    return Topology(
        cores=tuple(Core(cpus=(cpu,), socket=cpu // cores) for cpu in numbers),
        nodes=tuple(NumaNode(id=s, cpus=tuple(range(s * cores, (s + 1) * cores))) for s in range(sockets)),
    )


def workload(**fields: Any) -> sf.MPIWorkload:
    options: dict[str, Any] = {"name": "hpl", "mainfile": "hpl", "n_tasks": 4, **fields}
    return sf.MPIWorkload(**options)


def make_which(*programs: str) -> Callable[[str], str | None]:
    return lambda program: f"/usr/bin/{program}" if program in programs else None


@pytest.mark.parametrize(
    ("mode", "cpus"),
    [
        ("any", ["0-1,4-5"] * 4),
        ("cpu", ["0,4", "0,4", "1,5", "1,5"]),
        ("cpumem", ["0-1", "0-1", "4-5", "4-5"]),
        ("cpumempin", ["0", "1", "4", "5"]),
    ],
)
def test_equations_3_2_to_3_12_on_two_sockets(mode: str, cpus: list[str]) -> None:
    plan = plan_local_job(workload(n_workers=2, affinity=mode), machine(sockets=2))
    assert [format_cpus(rank.cpus) for rank in plan.ranks] == cpus
    assert plan.lines()[-1].endswith(f"-> worker 1 on localhost -> CPU{'' if len(cpus[-1]) == 1 else 's'} {cpus[-1]}")


def test_over_subscribed_ranks_share_cores_as_equation_3_12_has_it() -> None:
    plan = plan_local_job(workload(n_tasks=8, oversubscribe=True, affinity="cpumempin"), machine(cores=4))
    assert [rank.cpus for rank in plan.ranks] == [(0,), (0,), (1,), (1,), (2,), (2,), (3,), (3,)]
    assert plan.oversubscribed
    assert "8 cores were requested and 4 are available" in plan.reasons[1]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"n_tasks": 5}, r"'hpl' needs 5 cores for its 5 tasks, but 4 are available.*oversubscribe=True"),
        ({"resources_per_task": sf.Resources(cpu=1, memory="2Gi")}, "needs 8Gi for its 4 tasks, but 4Gi are available"),
    ],
)
@pytest.mark.parametrize("memory", ["installed", "limited"])
def test_what_does_not_fit_the_machine_is_refused(fields: dict[str, Any], message: str, memory: str) -> None:
    here, size = machine(), 4 * 2**30
    installed = here.replace(nodes=[node.replace(memory_bytes=size) for node in here.nodes])
    with pytest.raises(InvalidError, match=message):
        plan_local_job(
            workload(**fields), installed if memory == "installed" else here.replace(memory_limit_bytes=size)
        )


def test_of_ranks_that_still_ran_the_one_that_others_may_wait_for_is_named(tmp_path: Path) -> None:
    for rank in range(3):
        (tmp_path / f"{rank}.out").write_text(f"line of {rank}\n")
    ranks = describe_running_ranks("hpl", 3, 5.0, tmp_path, {0: 4.9, 1: 0.01, 2: 4.8})
    assert ranks == (
        "'hpl' did not finish within 5.00 s: ranks 0-2 still ran. Rank 1 used less than a tenth of the CPU time of the "
        "others, which may be waiting for them. Last lines of rank 1:\nline of 1"
    )
    unknown = "'hpl' did not finish within 5.00 s: ranks 0-2 still ran. Last lines of rank 0:\nline of 0"
    assert describe_running_ranks("hpl", 3, 5.0, tmp_path, {0: 4.9, 1: 4.8, 2: 4.7}) == unknown
    assert describe_running_ranks("hpl", 3, 5.0, tmp_path, {0: 0.02, 1: 0.0, 2: 0.02}) == unknown, "nobody computes"


def elf(file: Path, *libraries: str, wide: bool = True, order: str = "<") -> Path:
    """Write a program of headers alone, which names the libraries it is linked with."""
    names = b"\0" + b"".join(name.encode() + b"\0" for name in libraries)
    entry = struct.Struct(f"{order}{'qQ' if wide else 'iI'}")
    at, tags = 1, [(5, 0x1000), (10, len(names))]
    for name in libraries:
        tags, at = [*tags, (1, at)], at + len(name) + 1
    dynamic = b"".join(entry.pack(*tag) for tag in [*tags, (0, 0)])
    header = struct.Struct(f"{order}{'32xQ14xHH6x' if wide else '28xI10xHH6x'}")
    segment = struct.Struct(f"{order}{'I4xQQ8xQ16x' if wide else 'III4xI12x'}")
    first = header.size + 2 * segment.size
    head = bytearray(header.pack(header.size, segment.size, 2))
    head[:6] = b"\x7fELF" + bytes([2 if wide else 1, 1 if order == "<" else 2])
    segments = segment.pack(1, first, 0x1000, len(names)) + segment.pack(2, first + len(names), 0, len(dynamic))
    file.write_bytes(bytes(head) + segments + names + dynamic)
    return file


@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize("order", ["<", ">"])
def test_the_libraries_of_a_program_are_read_from_its_headers(tmp_path: Path, wide: bool, order: str) -> None:
    program = elf(tmp_path / "a", "libm.so.6", "libmpi.so.40", wide=wide, order=order)
    assert read_needed_libraries(program) == ("libm.so.6", "libmpi.so.40")


@given(st.data())
def test_a_damaged_program_is_linked_with_nothing_that_is_known(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        program = elf(Path(folder) / "a", "libmpi.so.40")
        content = bytearray(program.read_bytes())
        for _ in range(4):
            content[data.draw(st.integers(4, len(content) - 1))] = data.draw(st.integers(0, 255))
        program.write_bytes(content[: data.draw(st.integers(0, len(content)))])
        assert find_linked_flavor(program) in {"openmpi", "mpich", None}


def test_a_program_is_started_by_the_flavor_that_it_is_linked_with(tmp_path: Path) -> None:
    own, other = elf(tmp_path / "own", "libmpi.so.40"), elf(tmp_path / "other", "libc.so.6", "libmpich.so.12")
    script = tmp_path / "run.sh"
    script.write_bytes(b"#!/bin/sh\n# libmpich.so")
    assert [find_linked_flavor(program) for program in (own, other, script)] == ["openmpi", "mpich", None]
    both = make_which("mpirun.openmpi", "mpiexec.hydra")
    assert get_launcher(None, other, name="x", which=both) == Mpirun("mpich", "/usr/bin/mpiexec.hydra")
    assert get_launcher(None, script, name="x", which=both).flavor == "openmpi"
    with pytest.raises(InvalidError, match="sets flavor='openmpi', but its program is linked with 'mpich'"):
        get_launcher("openmpi", other, name="x", which=both)
    with pytest.raises(NotFoundError, match=r"needs mpirun of mpich, which is not installed.*apt-get install mpich"):
        get_launcher("mpich", script, name="x", which=make_which("mpirun.openmpi"))
    with pytest.raises(NotFoundError, match="apt-get install openmpi-bin"):
        get_launcher(None, script, name="x", which=make_which())


@pytest.mark.parametrize(
    ("statuses", "stopped", "code", "blamed"),
    [
        pytest.param([143, 3], [0], 3, "Rank 1 of 'ring' exited with code 3", id="within a tick of the clock"),
        pytest.param([143, 3], [0, 1], 3, "Rank 1 of 'ring' exited with code 3", id="stopped as it ended"),
        pytest.param([143, 143], [0], 143, "Rank 1 of 'ring' was killed by SIGTERM", id="killed by a person"),
        pytest.param([1, 1], [0], 1, "Rank 1 of 'ring' exited with code 1", id="the other fails as it is stopped"),
        pytest.param([143, 137], [0], 1, "Rank 1 of 'ring' was killed by SIGKILL", id="another code than any rank's"),
        pytest.param([143, 143], [0, 1], 3, "MPI_ABORT was invoked on rank 1", id="all stopped"),
        pytest.param([0, 0], [], 3, "MPI_ABORT was invoked on rank 1", id="none failed"),
    ],
)
def test_a_job_blames_the_rank_that_ended_by_itself(
    tmp_path: Path, statuses: list[int], stopped: list[int], code: int, blamed: str
) -> None:
    """The clock that dates files advances every few milliseconds, so that both ends may have the same time."""
    (tmp_path / "mpirun.err").write_text("MPI_ABORT was invoked on rank 1\nwith errorcode 3.\n", encoding="utf-8")
    for rank, status in enumerate(statuses):
        file = tmp_path / f"{rank}.exit"
        file.write_text(f"{status}\n", encoding="utf-8")
        os.utime(file, (1, 1))
    for rank in stopped:
        (tmp_path / f"{rank}.stopped").touch()
    assert blamed in describe_failure(tmp_path, "ring", code)


def test_a_job_ends_with_the_exit_code_of_the_rank_that_failed_as_in_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> NoReturn:
        failure = launcher.RankFailedError("Rank 1 of 'ring' exited with code 7")
        failure.exit_code = 7
        raise failure

    monkeypatch.setattr(launcher, "get_launcher", fail)
    with pytest.raises(SystemExit) as ended:
        launcher.launch(workload().model_dump(), ["ring"])
    assert ended.value.code == 7
    text = "".join(traceback.format_exception(ended.value))  # as a step's process prints it
    cause = parse_failure(text, summary="exit code 7").cause
    assert cause.endswith("RankFailedError: Rank 1 of 'ring' exited with code 7\nwhich led to: SystemExit: 7")


def test_parameters_become_options_as_those_of_an_executor_do(tmp_path: Path) -> None:
    program = elf(tmp_path / "hpl")
    program.chmod(0o755)
    flow = sf.Workflow(name="w", type="mpi", nodes=[workload(parameters={"sizes": [1, 2], "seed": None, "n": 3})])
    _, argv = resolve_job(sf.Application(name="a", app_dir=tmp_path, workflows=[flow]), flow)
    assert argv == [str(program), "--sizes", "[1, 2]", "--n", "3"]


def test_a_program_that_is_not_in_the_folder_is_looked_for_on_the_path_to_say_where_it_is(tmp_path: Path) -> None:
    flow = sf.Workflow(name="w", type="mpi", nodes=[workload(mainfile="sh")])
    with pytest.raises(NotFoundError, match=r"MPIWorkload 'hpl': There is no file 'sh' in .*mainfile='/.*/sh'"):
        resolve_job(sf.Application(name="a", app_dir=tmp_path, workflows=[flow]), flow)


def test_only_over_subscribed_ranks_yield_while_they_wait() -> None:
    launcher = Mpirun("openmpi", "mpirun")
    crowded, _ = build_command(launcher, 4, oversubscribed=True, argv=["a"], root=True)
    alone, env = build_command(launcher, 4, oversubscribed=False, argv=["a"], root=False)
    assert "mpi_yield_when_idle" in crowded
    assert "mpi_yield_when_idle" not in alone
    assert "OMPI_ALLOW_RUN_AS_ROOT" not in env


def test_a_yaml_mainfile_names_the_program_and_fields_of_the_workload(tmp_path: Path) -> None:
    (tmp_path / "dgemm").write_text("#!/bin/sh\n")
    (tmp_path / "dgemm").chmod(0o755)
    (tmp_path / "exp.yaml").write_text("program: dgemm\nargs: [-n, 100]\noversubscribe: true\nprofile: cpu\n")
    flow = sf.Workflow(name="w", type="mpi", nodes=[workload(mainfile="exp.yaml")])
    app = sf.Application(name="a", app_dir=tmp_path, workflows=[flow])
    mpi_workload, argv = resolve_job(app, flow)
    assert (mpi_workload.oversubscribe, mpi_workload.profile, argv) == (
        True,
        "cpu",
        [str(tmp_path / "dgemm"), "-n", "100"],
    )


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("kind: Job\n", UnsupportedError, "describes a Kubernetes Job"),
        ("args: []\n", InvalidError, "needs 'program'"),
        ("program: x\ntasks: 2\n", InvalidError, "'tasks' is not a field of a workload. Did you mean 'n_tasks'"),
        ("program: x\nargs: -n\n", InvalidError, "'args' is '-n', not a list"),
        ("program: [\n", InvalidError, "cannot be read as YAML"),
    ],
)
def test_a_yaml_mainfile_that_is_none_says_why(tmp_path: Path, text: str, error: type[Exception], message: str) -> None:
    (tmp_path / "exp.yaml").write_text(text)
    flow = sf.Workflow(name="w", type="mpi", nodes=[workload(mainfile="exp.yaml")])
    with pytest.raises(error, match=message):
        resolve_job(sf.Application(name="a", app_dir=tmp_path, workflows=[flow]), flow)


def test_each_rank_is_a_task_with_its_place(tmp_path: Path) -> None:
    job = TaskRecord(task=StepName("hpl"), step="hpl", state="failed", attempts=1)
    assert build_rank_tasks(tmp_path, job) == []
    folder = tmp_path / "ranks"
    folder.mkdir()
    ranks = [{"rank": 0, "node": "localhost", "cpus": [0, 1]}, {"rank": 1, "node": "localhost", "cpus": []}]
    (folder / "plan.json").write_text(json.dumps({"ranks": ranks}))
    (folder / "1.exit").write_text("139\n")
    first, second = build_rank_tasks(tmp_path, job)
    assert (first.task, first.state, first.place) == ("hpl.0", "stopped", "localhost, CPUs 0-1")
    assert (second.task, second.state, second.exit_code, second.place) == ("hpl.1", "failed", 139, "localhost")
    assert exit_status(folder, 0) is None


def test_each_rank_gets_its_part_of_the_gpus_of_its_job() -> None:
    anywhere: list[list[int]] = [[], []]
    assert assign_devices([0, 0, 0, 0], [*anywhere, *anywhere]) == [[0], [1], [2], [3]]
    assert assign_devices([0, 0, 1, 1], anywhere) == [[0, 1], [2, 3]]
    assert assign_devices([], anywhere) == [[], []]


@given(
    nodes=st.lists(st.sampled_from([0, 1, 2, None]), min_size=1, max_size=8),
    near=st.lists(st.lists(st.sampled_from([0, 1, 2]), max_size=1), min_size=1, max_size=4),
)
def test_as_many_ranks_as_possible_get_gpus_near_their_cores(nodes: list[int | None], near: list[list[int]]) -> None:
    """The oracle counts: of each node, no more than it has devices, nor than its ranks take."""
    each = len(nodes) // len(near)
    assigned = assign_devices(nodes, near)
    places = [place for own in assigned for place in own]
    assert [len(own) for own in assigned] == [each] * len(near)
    assert len(set(places)) == len(places)
    beside = sum(nodes[place] in rank_nodes for own, rank_nodes in zip(assigned, near, strict=True) for place in own)
    assert beside == sum(min(nodes.count(node), each * near.count([node])) for node in (0, 1, 2))


def test_a_rank_is_bounded_to_its_own_share() -> None:
    half = DeviceGrant(
        uuid="GPU-a",
        device="GPU-a",
        number=0,
        sharing="mps",
        share=0.5,
        memory_bytes=8 * 2**30,
        device_bytes=80 * 2**30,
    )
    variables = build_rank_variables([half])
    assert variables == {
        "CUDA_VISIBLE_DEVICES": "GPU-a",
        "SCANFLOW_GPU_MEMORY_BYTES": str(8 * 2**30),
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=8192M",
        "SCANFLOW_GPU_SHARE": "0.5",
        "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.093750",
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    }
    assert build_device_variables([half, half])["CUDA_VISIBLE_DEVICES"] == "GPU-a"


@pytest.mark.parametrize(
    ("fields", "gpu"), [({"gpu": 2}, 2), ({"gpu": 0.5}, 0.5), ({"gpu": "1g.10gb"}, "1g.10gb"), ({}, 0)]
)
def test_a_job_asks_for_the_gpus_of_all_its_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], gpu: float | str
) -> None:
    (tmp_path / "hpl").write_text("#!/bin/sh\n")
    (tmp_path / "hpl").chmod(0o755)
    job = workload(n_tasks=4, oversubscribe=True, resources_per_task=sf.Resources(**fields))
    flow = sf.Workflow(name="w", type="mpi", nodes=[job])
    definition = RunDefinition(sf.Application(name="a", app_dir=tmp_path, workflows=[flow]), flow)
    monkeypatch.setattr("scanflow.backends.local.mpi.job.get_launcher", lambda *_, **__: None)  # none is installed
    (step,) = as_batch(definition, tmp_path).workflow.steps
    assert (step.resources.gpu, count_ranks(step)) == (gpu, 4)
    assert count_ranks(sf.Executor(name="x", mainfile="x.py", resources=sf.Resources(gpu=0.5))) is None


def test_what_ranks_cannot_have_of_a_gpu_is_refused_by_name(tmp_path: Path) -> None:
    fields = {"resources_per_task": sf.Resources(gpu=0.5), "image": "hpl:1", "runtime": "podman"}
    message = "resources_per_task.gpu in containers of 'podman'. Remove runtime, or gpu."
    (tmp_path / "hpl").write_text("#!/bin/sh\n")
    (tmp_path / "hpl").chmod(0o755)
    workflow = sf.Workflow(name="w", type="mpi", nodes=[workload(**fields)])
    app = sf.Application(name="shop", workflows=[workflow], app_dir=str(tmp_path))
    with pytest.raises(UnsupportedError, match=f"MPIWorkload 'hpl': the embedded backend does not support {message}"):
        resolve_job(app, workflow)
