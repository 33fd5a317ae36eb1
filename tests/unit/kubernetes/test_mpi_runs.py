"""MPI jobs on a cluster, entered, driven and looked at: what a controller and the kubelets would do, the test plays."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import scanflow as sf
from scanflow.backends.environments import EnsuredEnvironment
from scanflow.backends.kubernetes.all_runs import KubernetesRuns
from scanflow.backends.kubernetes.batch.preparation import RunPreparation
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.kubernetes_settings import KubernetesSettings
from scanflow.backends.kubernetes.mpi.launcher_log import RankOutput, parse_log
from scanflow.backends.kubernetes.mpi.mpi_objects import ROLE
from scanflow.backends.kubernetes.mpi.observed_job import QUEUE_REASONS, observe_job
from scanflow.backends.kubernetes.pod_logs import LogLine
from scanflow.backends.run_definition import RunDefinition
from scanflow.backends.run_records import Event
from scanflow.errors import AccessDeniedError, InvalidError, UnsupportedError, UsageError
from scanflow.settings import Settings
from scanflow.testing.memory_cluster import MemoryCluster
from tests.conftest import Cli

NAMESPACE = "scanflow-hpc-data"
TIMES = {"startedAt": "2026-01-01T10:00:00Z", "finishedAt": "2026-01-01T10:00:09Z"}
LOG = b"""[1,0]<stdout>:##scanflow began ring-launcher-0
[1,1]<stdout>:##scanflow began ring-launcher-0
[1,1]<stdout>:half of it
[1,0]<stdout>:first
[1,1]<stderr>:%s
[1,0]<stdout>:no end of line##scanflow ended 0
[1,1]<stdout>:##scanflow ended %d
"""


IMAGELESS = {"name": "worker", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}}


def application(folder: Path, **fields: Any) -> sf.Application:
    (folder / "ring.py").write_text("print('ring')\n")
    options: dict[str, Any] = {"name": "ring", "mainfile": "ring.py", "n_tasks": 2, **fields}
    workload = sf.MPIWorkload(**options)
    workflow = sf.Workflow(name="job", type="mpi", nodes=[workload])
    return sf.Application(name="hpc", team="data", app_dir=folder, workflows=[workflow])


@pytest.fixture
def cluster() -> MemoryCluster:
    cluster = MemoryCluster(namespaces=(NAMESPACE,))
    for place in range(2):
        status = {"allocatable": {"cpu": "4", "memory": "8Gi"}, "conditions": [{"type": "Ready", "status": "True"}]}
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"n{place}"}, "spec": {}, "status": status}
        cluster.create(node)
    return cluster


@pytest.fixture
def runs(cluster: MemoryCluster, settings: Settings) -> KubernetesRuns:
    own = KubernetesSettings(mpi_image="lab/mpi:1")
    preparation = RunPreparation(lambda _: EnsuredEnvironment(NAMESPACE, None), own, lambda _: None, lambda _: None)  # type: ignore[arg-type,return-value]
    return KubernetesRuns(settings, cluster, own, preparation)


def plays(
    code: int, *, phase: str = "Succeeded", reason: str = "", message: bytes = b"cannot read input.dat"
) -> Callable[[MemoryCluster, Manifest], None]:
    """Return what Volcano and a kubelet do about a job of one pod, which ends with this code."""

    def play(cluster: MemoryCluster, job: Manifest) -> None:
        if job.get("status"):
            return
        name = f"{job['metadata']['name']}-launcher-0"
        [task] = job["spec"]["tasks"]
        state = {"terminated": {**TIMES, "exitCode": code, "reason": "Completed" if code == 0 else "Error"}}
        status = {"phase": phase, "reason": reason, "containerStatuses": [{"name": "launcher", "state": state}]}
        pod: Manifest = {"apiVersion": "v1", "kind": "Pod", "status": status, "spec": {**task["template"]["spec"]}}
        pod["spec"]["nodeName"] = "n1"
        pod["metadata"] = {"name": name, "namespace": NAMESPACE, "labels": task["template"]["metadata"]["labels"]}
        cluster.logs[NAMESPACE, name] = (LOG % (message, code)).replace(b"ring-launcher-0", name.encode())
        cluster.create(pod)
        over = "Completed" if code == 0 else "Terminated"
        cluster.edit("Job", job["metadata"]["name"], NAMESPACE, {"status": {"state": {"phase": over}}})

    return play


def drive(runs: KubernetesRuns, app: sf.Application) -> tuple[Any, list[Event]]:
    entered, events = runs.enter(RunDefinition(app, app.workflows[0])), list[Event]()
    record = runs.drive(entered.name, environment=lambda _: {}, observe=events.append)
    return record, events


def text(runs: KubernetesRuns, run: str, task: str, stream: Any = "both") -> str:
    with closing(runs.logs(run, task, stream=stream)) as reader:
        return b"".join(part.data for part in reader.read().parts).decode()


def test_a_job_runs_to_its_end_and_outlives_its_objects(
    runs: KubernetesRuns, cluster: MemoryCluster, tmp_path: Path
) -> None:
    cluster.play("Job", plays(0))
    record, events = drive(runs, application(tmp_path))
    assert record.state == "succeeded"
    assert [event.kind for event in events] == ["run-started", "task-started", "task-ended", "run-ended"]
    cluster.delete("Job", record.name, NAMESPACE)
    cluster.delete("Pod", f"{record.name}-launcher-0", NAMESPACE)
    shown = runs.show(record.name)
    assert [(task.task, task.state, task.place) for task in shown.tasks] == [
        ("ring.0", "succeeded", "n1"),
        ("ring.1", "succeeded", "n1"),
        ("ring", "succeeded", "n1"),
    ]
    assert (shown.tasks[-1].seconds, shown.tasks[-1].exit_code) == (9.0, 0)
    assert text(runs, record.name, "ring.0") == "first\nno end of line\n"
    assert "[1] half of it\n[0] first\n" in text(runs, record.name, "ring", "stdout")
    assert "2 tasks in 1 worker" in text(runs, record.name, "ring")
    result = runs.outputs(record.name, "ring")
    assert isinstance(result, dict)
    assert result["result"]["ranks"] == 2


def test_a_rank_that_fails_is_named_with_its_last_lines(
    runs: KubernetesRuns, cluster: MemoryCluster, tmp_path: Path
) -> None:
    cluster.play("Job", plays(3, phase="Failed"))
    record, _ = drive(runs, application(tmp_path))
    job = record.tasks[-1]
    assert (record.state, job.exit_code, job.failure.summary) == ("failed", 3, "exit code 3")
    assert job.failure.cause == (
        "Rank 1 of 'ring' exited with code 3, so mpirun stopped the others. Its last lines:\ncannot read input.dat"
    )
    again = runs.drive(record.name, environment=lambda _: {}, observe=lambda _: None)
    assert (again.state, again.tasks[-1].attempts) == ("failed", 2)
    assert cluster.get("Job", f"{record.name}-2", NAMESPACE) is not None


def play_deletion(gone: str) -> Callable[[MemoryCluster, Manifest], None]:
    """Return what a cluster does about a job of a launcher and a worker, one of which somebody deletes as it runs."""

    def play(cluster: MemoryCluster, job: Manifest) -> None:
        name, state = job["metadata"]["name"], (job.get("status") or {}).get("state", {}).get("phase")
        if state is None:
            for role in ("launcher", "worker"):
                labels = {**job["metadata"]["labels"], ROLE: role}
                running = {"name": role, "state": {"running": {"startedAt": TIMES["startedAt"]}}}
                status = {"phase": "Running", "containerStatuses": [running]}
                metadata = {"name": f"{name}-{role}-0", "namespace": NAMESPACE, "labels": labels}
                spec = {"nodeName": "n1", "containers": []}
                cluster.create(
                    {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": status}
                )
            cluster.logs[NAMESPACE, f"{name}-launcher-0"] = b"[1,0]<stdout>:##scanflow began x\n"
            cluster.edit("Job", name, NAMESPACE, {"status": {"state": {"phase": "Running"}}})
        elif state == "Running":
            cluster.delete("Pod", f"{name}-{gone}-0", NAMESPACE)
            if gone == "worker":
                ended = {"name": "launcher", "state": {"terminated": {**TIMES, "exitCode": 1, "reason": "Error"}}}
                status = {"phase": "Failed", "containerStatuses": [ended]}
                cluster.edit("Pod", f"{name}-launcher-0", NAMESPACE, {"status": status})
            else:
                cluster.delete("Pod", f"{name}-worker-0", NAMESPACE)  # as Volcano does
            cluster.edit("Job", name, NAMESPACE, {"status": {"state": {"phase": "Terminated"}}})

    return play


@pytest.mark.parametrize("gone", ["launcher", "worker"])
def test_a_pod_that_a_user_deletes_is_named(
    runs: KubernetesRuns, cluster: MemoryCluster, tmp_path: Path, gone: str
) -> None:
    play = play_deletion(gone)
    cluster.play("Job", play)
    app = application(tmp_path)
    entered = runs.enter(RunDefinition(app, app.workflows[0]))

    def go_on(event: Event) -> None:
        if event.kind == "task-started":
            job = cluster.get("Job", entered.name, NAMESPACE)
            assert job is not None
            play(cluster, job)

    record = runs.drive(entered.name, environment=lambda _: {}, observe=go_on)
    failure = record.tasks[-1].failure
    assert record.state == "failed"
    assert failure is not None
    assert failure.cause.startswith(f"The pod {entered.name}-{gone}-0 is gone: deleted by another client")


def test_a_job_that_a_user_deletes_is_named(runs: KubernetesRuns, cluster: MemoryCluster, tmp_path: Path) -> None:
    app = application(tmp_path)
    entered = runs.enter(RunDefinition(app, app.workflows[0]))
    cluster.play("Job", lambda cluster, job: cluster.delete("Job", job["metadata"]["name"], NAMESPACE))
    record = runs.drive(entered.name, environment=lambda _: {}, observe=lambda _: None)
    assert record.state == "stopped"
    assert record.error is not None
    assert f"The job '{entered.name}' of the namespace '{NAMESPACE}' was deleted by another client" in record.error


def test_a_timeout_that_a_yaml_mainfile_says_is_what_the_error_says(
    runs: KubernetesRuns, cluster: MemoryCluster, tmp_path: Path
) -> None:
    (tmp_path / "exp.yaml").write_text("program: ring.py\ntimeout: 2m\n")
    cluster.play("Job", plays(137, phase="Failed", reason="DeadlineExceeded"))
    record, _ = drive(runs, application(tmp_path, mainfile="exp.yaml"))
    assert record.tasks[-1].failure is not None
    assert record.tasks[-1].failure.cause == "'ring' did not finish within 2m 00s: mpirun still ran."


def test_a_job_that_nobody_watched_is_read_when_a_client_looks(
    runs: KubernetesRuns, cluster: MemoryCluster, tmp_path: Path
) -> None:
    app = application(tmp_path)
    entered = runs.enter(RunDefinition(app, app.workflows[0]))

    def die(event: Event) -> None:
        if event.kind == "run-started":
            raise MemoryError("killed")

    with pytest.raises(MemoryError):
        runs.drive(entered.name, environment=lambda _: {}, observe=die)
    assert runs.show(entered.name).state == "running"
    job = cluster.get("Job", entered.name, NAMESPACE)
    assert job is not None
    plays(0)(cluster, job)
    assert [task.state for task in runs.show(entered.name).tasks] == ["succeeded"] * 3
    assert runs.runs(limit=5)[0].seconds == 9.0


def test_a_job_without_a_node_is_deleted_when_it_is_stopped(
    runs: KubernetesRuns, cluster: MemoryCluster, tmp_path: Path
) -> None:
    app = application(tmp_path)
    entered = runs.enter(RunDefinition(app, app.workflows[0]))

    def stop(event: Event) -> None:
        if event.kind == "run-started":
            runs.stop(entered.name)

    record = runs.drive(entered.name, environment=lambda _: {}, observe=stop)
    assert (record.state, record.error) == ("stopped", None)
    assert cluster.get("Job", entered.name, NAMESPACE) is None


def test_what_pods_cannot_do_is_refused_before_a_run(runs: KubernetesRuns, tmp_path: Path) -> None:
    def assert_refused(error: type[Exception], match: str, **fields: Any) -> None:
        app = application(tmp_path, **fields)
        with pytest.raises(error, match=match):
            runs.check(RunDefinition(app, app.workflows[0]))

    (tmp_path / "solve").write_text("#!/bin/sh\n")
    assert_refused(UnsupportedError, "under Open MPI", flavor="mpich")
    share = sf.Resources(gpu=0.5)
    assert_refused(InvalidError, "no node has the GPUs of a rank: it asks", resources_per_task=share)
    assert_refused(InvalidError, "no node has the GPUs of a rank: it asks", resources_per_task=sf.Resources(gpu=1))
    assert_refused(InvalidError, r"make it executable: chmod \+x solve", mainfile="solve")
    assert_refused(InvalidError, "64 cores for its 64 tasks, but 8 are available", n_tasks=64)
    assert_refused(UnsupportedError, r"affinity\.near is not supported", affinity=sf.Affinity(near=["ring"]))
    assert_refused(InvalidError, "no node has the labels disk=ssd", affinity=sf.Affinity(node_selector={"disk": "ssd"}))
    assert_refused(InvalidError, "is outside the application's folder", mainfile="/bin/true")


def test_a_volume_is_mounted_by_all_pods_and_refused_where_they_would_wait_for_ever(
    runs: KubernetesRuns, cluster: MemoryCluster, tmp_path: Path
) -> None:
    fields: dict[str, Any] = {"profile": "memory", "n_nodes": 2, "volume": "meshes"}
    app = application(tmp_path, **fields)
    with pytest.raises(InvalidError, match=f"no PersistentVolumeClaim 'meshes' in the namespace '{NAMESPACE}'"):
        runs.plan(app, app.workflows[0])
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "meshes", "namespace": NAMESPACE},
    }
    cluster.create({**claim, "spec": {"accessModes": ["ReadWriteOnce"]}})
    with pytest.raises(InvalidError, match="planned on 2 nodes, and the claim 'meshes' is ReadWriteOnce"):
        runs.plan(app, app.workflows[0])
    with_volume = application(tmp_path, volume="meshes")
    assert runs.plan(with_volume, with_volume.workflows[0]).steps
    cluster.patch("PersistentVolumeClaim", "meshes", NAMESPACE, {"spec": {"accessModes": ["ReadWriteMany"]}})
    *_, gang = runs.manifests(app, app.workflows[0])
    for task in gang["spec"]["tasks"]:
        [container] = task["template"]["spec"]["containers"]
        claims = [volume.get("persistentVolumeClaim") for volume in task["template"]["spec"]["volumes"]]
        assert {"claimName": "meshes"} in claims
        assert {"name": "results", "mountPath": "/scanflow/outputs"} in container["volumeMounts"]
        [folder] = [variable["value"] for variable in container["env"] if variable["name"] == "SCANFLOW_OUTPUT_DIR"]
        assert folder.startswith("/scanflow/outputs/")
        assert folder.endswith("/ring")


def test_a_launchers_log_is_split_by_rank() -> None:
    lines = [
        b"[1,0]<stdout>:a",
        b"mpirun: hello",
        b"[prterun-h-7@1,12]<stderr>:b",
        b"[1,0]<stdout>:##scanflow ended 139",
    ]
    log = parse_log([LogLine(str(place), line) for place, line in enumerate(lines)], n_tasks=16)
    assert log.ranks == {(0, "stdout"): b"a\n", (12, "stderr"): b"b\n"}
    assert log.whole == {"stdout": b"[0] a\n", "stderr": b"mpirun: hello\n[12] b\n"}
    assert log.ended == {0: ("3", 139)}


def test_a_line_that_mpirun_tags_in_its_middle_is_one_line() -> None:
    def parse(*lines: bytes, **options: Any) -> Any:
        return parse_log([LogLine(str(place), line) for place, line in enumerate(lines)], n_tasks=2, **options)

    log = parse(
        b"[1,0]<stdout>:ranks[1,0]<stdout>: [1,0]<stdout>:4[1,0]<stdout>:",
        b"[1,0]<stdout>:one[1,1]<stdout>:two[1,0]<stdout>:",
        b"[1,1]<stdout>:[1,0]<stdout>:##scanf[1,0]<stderr>:lost",
        b"mpirun: a[1,1]<stdout>:##scanflow ended 0",
    )
    assert log.ranks == {(0, "stdout"): b"ranks 4\none\n", (0, "stderr"): b"lost\n", (1, "stdout"): b"two\n"}
    assert log.whole["stdout"] == b"[0] ranks 4\n[0] one\n[1] two\n"
    assert log.whole["stderr"] == b"[0] lost\nmpirun: a\n"
    assert (log.parts, log.ended) == ({(0, "stdout"): b"##scanf"}, {1: ("3", 0)})
    more = parse(b"[1,0]<stdout>:low ended 7", parts=log.parts)
    assert (more.parts, more.ended, more.ranks) == ({}, {0: ("0", 7)}, {})


def test_a_tag_of_a_rank_that_the_job_does_not_have_is_text() -> None:
    log = parse_log([LogLine("1", b"[1,1]<stdout>:[1,2]<stdout>: x [1,30]<stderr>:y")], n_tasks=2)
    assert log.ranks == {(1, "stdout"): b"[1,2]<stdout>: x [1,30]<stderr>:y\n"}


def test_a_line_that_ranks_did_not_end_is_kept_when_they_have(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text('{"ranks": [{}, {}]}')
    output = RankOutput(tmp_path, tmp_path / "attempt")
    output.add([LogLine("1", b"[1,0]<stdout>:what \xff was[1,1]<stdout>:hello")])
    assert (tmp_path / "attempt" / "stdout.log").read_bytes() == b"[1] hello\n"
    output.add([], over=True)
    assert (tmp_path / "attempt" / "stdout.log").read_bytes() == b"[1] hello\n[0] what \xff was\n"
    output.add([], over=True)
    assert output.read().parts == ()


def test_a_job_goes_on_that_an_earlier_version_followed(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text('{"ranks": [{}, {}]}')
    output = RankOutput(tmp_path, tmp_path / "attempt")
    output.add([LogLine("1", b"[1,0]<stdout>:hello\n")])
    (tmp_path / "ranks.json").rename(tmp_path / "told.json")
    assert output.read().until == "1"
    output.add([LogLine("2", b"[1,1]<stdout>:hello\n")])
    assert output.read().until == "2"


def test_how_a_job_stands_is_read_from_its_pods() -> None:
    job: Manifest = {"kind": "Job", "metadata": {"name": "j"}, "status": {"state": {"phase": "Pending"}}}
    queued = observe_job(job, [])
    assert queued.state == "pending"
    assert str(queued.waiting) == "Queued: its queue has no room for all of its pods yet."
    lost = {
        "metadata": {"name": "j-group-0-0", "labels": {"scanflow.dev/mpi-role": "worker"}},
        "spec": {"nodeName": "n0"},
        "status": {"phase": "Failed", "reason": "Evicted"},
    }
    assert observe_job(job, [lost]).lost_workers == {"j-group-0-0": "Evicted"}
    mpi: Manifest = {"kind": "MPIJob", "metadata": {"name": "j"}}
    mpi["status"] = {"conditions": [{"type": "Created", "status": "True"}, {"type": "Failed", "status": "True"}]}
    assert (observe_job(mpi, []).state, observe_job(mpi, []).is_final) == ("failed", True)


def pending_pod(name: str, reason: str, message: str) -> Manifest:
    condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
    status = {"phase": "Pending", "conditions": [condition]}
    return {"metadata": {"name": name}, "spec": {}, "status": status}


def test_a_job_waits_for_capacity_as_long_as_it_takes_and_names_the_pod_that_has_none() -> None:
    job: Manifest = {"kind": "Job", "metadata": {"name": "j"}, "status": {"state": {"phase": "Pending"}}}
    room = pending_pod("j-launcher-0", "Schedulable", "can possibly be assigned to n0, once minAvailable is satisfied")
    none = pending_pod("j-worker-0", "Unschedulable", "0/2 nodes are available: 2 Insufficient cpu")
    waiting = observe_job(job, [room, none]).waiting
    assert waiting is not None
    assert waiting.reason == "Unschedulable"
    for reason in ("Schedulable", "Undetermined", "Unschedulable", "Queued"):
        assert reason in QUEUE_REASONS
    image = {**pending_pod("j-worker-1", "x", ""), "status": {"containerStatuses": [IMAGELESS]}}
    waiting = observe_job(job, [room, none, image]).waiting
    assert waiting is not None
    assert waiting.reason == "ImagePullBackOff"


def test_a_plan_is_one_for_the_cluster_that_would_run_the_job(
    runs: KubernetesRuns, tmp_path: Path, quick_cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    application(tmp_path)
    (tmp_path / "hpc.py").write_text(
        "import scanflow as sf\n"
        "ring = sf.MPIWorkload(name='ring', mainfile='ring.py', n_tasks=2)\n"
        "job = sf.Workflow(name='job', type='mpi', nodes=[ring])\n"
        "app = sf.Application(name='hpc', team='data', workflows=[job])\n"
    )
    monkeypatch.setenv("SCANFLOW_BACKEND", "kubernetes")
    backend = SimpleNamespace(mpi=lambda: runs)
    monkeypatch.setattr("scanflow.deployer.embedded.open_backend", lambda *_: backend)
    planned = quick_cli("mpi", "plan", "hpc.py:job")
    assert planned.returncode == 0, planned.stderr
    assert "ranks 0-1 -> worker 0 on n0" in planned.stdout


def test_pods_that_the_namespace_refuses_are_reported_before_the_job_and_a_used_up_quota_is_waited_for(
    runs: KubernetesRuns, cluster: MemoryCluster, tmp_path: Path
) -> None:
    says = ['pods "ring-0" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot != true']
    cluster.refuse(lambda verb, kind, _: AccessDeniedError(says[0]) if (verb, kind) == ("create", "Pod") else None)
    app = application(tmp_path)
    with pytest.raises(
        InvalidError, match=f"The namespace '{NAMESPACE}' refuses the pods of MPI jobs: .*/enforce allow"
    ):
        runs.enter(RunDefinition(app, app.workflows[0]))
    assert runs.runs(limit=1) == []
    for says[0] in ('pods "ring-0" is forbidden: exceeded quota', 'pods is forbidden: User "a" cannot create resource'):
        assert runs.enter(RunDefinition(app, app.workflows[0])).state == "interrupted"


def test_the_outputs_of_a_job_are_its_own_and_not_its_ranks_whatever_its_name(
    runs: KubernetesRuns, cluster: MemoryCluster, tmp_path: Path
) -> None:
    cluster.play("Job", plays(0))
    record, _ = drive(runs, application(tmp_path, name="ranks"))
    assert runs.outputs(record.name, "ranks")["result"]["ranks"] == 2  # type: ignore[call-overload]


def test_a_cluster_has_one_engine_of_jobs_or_forbids_the_other(
    runs: KubernetesRuns, cluster: MemoryCluster, tmp_path: Path
) -> None:
    cluster.unknown = {"MPIJob"}
    cluster.play("Job", plays(0))
    record, _ = drive(runs, application(tmp_path))
    assert (record.state, runs.show(record.name).state) == ("succeeded", "succeeded")


def test_an_image_of_a_jobs_own_is_said_to_have_no_files_of_the_application(
    runs: KubernetesRuns, cluster: MemoryCluster, tmp_path: Path
) -> None:
    app = application(tmp_path, image="lab/own:1")
    (step,) = runs.plan(app, app.workflows[0]).steps
    assert "ring.py is looked for in the image: the application's folder is not sent to an own image" in step.notes
    cluster.play(
        "Job", plays(2, phase="Failed", message=b"python3: can't open file 'ring.py': No such file or directory")
    )
    record, _ = drive(runs, app)
    assert "SCANFLOW_KUBERNETES_MPI_IMAGE, which gets the folder" in record.tasks[-1].failure.cause


def test_a_job_says_something_of_services_only_where_there_are_some(
    runs: KubernetesRuns, cluster: MemoryCluster, tmp_path: Path
) -> None:
    app = application(tmp_path, profile="cpu")

    def speaks_of_services() -> bool:
        *_, gang = runs.manifests(app, app.workflows[0])
        return "scanflow.dev/service" in str(gang)

    assert not speaks_of_services()
    labels = {"app.kubernetes.io/managed-by": "scanflow", "scanflow.dev/service": "serve"}
    metadata = {"name": "serve-1", "namespace": NAMESPACE, "labels": labels}
    cluster.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {}, "status": {}})
    assert speaks_of_services()
    cluster.delete("Pod", "serve-1", NAMESPACE)
    cluster.refuse(lambda verb, kind, _: UsageError("forbidden") if (verb, kind) == ("find", "Pod") else None)
    assert speaks_of_services(), "who may not look leaves nothing out"
