"""Runs of one cluster, seen and used from two homes, as from two machines."""

from __future__ import annotations

import base64
import io
import shutil
import tarfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import scanflow as sf
from scanflow.backends.environments import EnsuredEnvironment
from scanflow.backends.kubernetes.all_runs import KubernetesRuns
from scanflow.backends.kubernetes.api_errors import ConflictError
from scanflow.backends.kubernetes.batch.preparation import RunPreparation
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.kubernetes_settings import KubernetesSettings
from scanflow.backends.run_definition import RunDefinition
from scanflow.backends.run_records import Event, RunRecord
from scanflow.errors import AccessDeniedError, InvalidError, NotFoundError, ScanflowError, UnavailableError, UsageError
from scanflow.names import RunName
from scanflow.settings import Settings
from scanflow.testing.memory_cluster import MemoryCluster
from tests.unit.kubernetes import test_mpi_runs
from tests.unit.kubernetes.test_batch_runs import NAMESPACE, Shop, list_steps

FUNCTION = b"a pickled function"


class TwoHomes(Shop):
    """A cluster, an application, and two homes: ``runs`` and ``other``."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        super().__init__(settings, folder)
        self.folder, self.other_home = folder, folder.parent / "other-home"
        self.other = self.open(KubernetesSettings(pending_s=1e-9))
        self.claim()

    def open(self, own: KubernetesSettings, home: Path | None = None) -> KubernetesRuns:
        models: Any = lambda _tracker: None  # noqa: E731  no step asks for one
        preparation = RunPreparation(
            lambda _: EnsuredEnvironment(NAMESPACE, None, uid=self.uid), own, lambda _: None, models
        )
        settings = self.settings.model_copy(update={"home": home or self.other_home})
        return KubernetesRuns(settings, self.cluster, own, preparation)

    def drive_there(self, run: str, *, observe: Callable[[Event], None] = lambda _: None) -> RunRecord:
        return self.other.drive(run, self.other.definition(run), environment=lambda _: {}, observe=observe)

    def move_application(self) -> Path:
        """Move the application's folder, as one that is on another machine."""
        return self.folder.rename(self.folder.with_name("elsewhere"))

    def list_workflows(self) -> list[str]:
        return [workflow["metadata"]["name"] for workflow in self.cluster.find("Workflow", NAMESPACE)[0]]

    def end(self, run: str, phase: str, **phases: str) -> None:
        """Have Argo end the Workflow of a run that nobody watches."""
        nodes = {
            step: {"name": f"{run}.{step}", "type": "Pod", "phase": step_phase, "templateName": f"step-{step}"}
            for step, step_phase in phases.items()
        }
        times = {"startedAt": "2026-01-01T10:00:00Z", "finishedAt": "2026-01-01T10:00:09Z"}
        status = {"phase": phase, "nodes": nodes, **(times if phase != "Running" else {})}
        self.cluster.edit("Workflow", run, NAMESPACE, {"status": status}, manager="argo")

    def leave(self, run: str, monkeypatch: pytest.MonkeyPatch, runs: KubernetesRuns | None = None) -> None:
        """Begin a run, and be killed while it is watched."""

        def kill(*_args: Any, **_how: Any) -> None:
            raise MemoryError("killed")

        driver = runs or self.runs
        definition = driver.definition(run)
        with monkeypatch.context() as patch:
            patch.setattr(self.cluster, "watch", kill)
            with pytest.raises(MemoryError):
                driver.drive(run, definition, environment=lambda _: {}, observe=lambda _: None)


@pytest.fixture
def homes(settings: Settings, tmp_path: Path) -> TwoHomes:
    return TwoHomes(settings, tmp_path / "app")


def list_states(record: RunRecord) -> dict[str, str]:
    return {str(task.task): task.state for task in record.tasks}


# Seeing


def test_a_run_of_another_home_is_listed_and_shown(homes: TwoHomes, monkeypatch: pytest.MonkeyPatch) -> None:
    run = homes.enter()
    assert [record.name for record in homes.other.runs(limit=20)] == [run.name]
    shown = homes.other.show(run.name)
    assert (shown.state, shown.app, shown.team, shown.workflow) == ("interrupted", "shop", "data", "train")
    assert shown.created == run.created
    homes.leave(run.name, monkeypatch)
    homes.end(run.name, "Running", a="Succeeded", b="Running")
    shown = homes.other.show("@latest")
    assert (shown.name, shown.state, list_states(shown)) == (run.name, "running", {"a": "succeeded", "b": "running"})
    homes.end(run.name, "Succeeded", a="Succeeded", b="Succeeded")
    assert [record.state for record in homes.other.runs(limit=20)] == ["succeeded"]


def test_the_latest_run_is_the_newest_of_this_home_and_lists_have_those_of_all(homes: TwoHomes) -> None:
    first = homes.enter().name
    second = homes.other.enter(RunDefinition(homes.app, homes.app.workflows[0])).name
    third = homes.enter().name
    assert [record.name for record in homes.other.runs(limit=2)] == [third, second]
    assert homes.other.show("@latest").name == second, "nobody stops another person's run by leaving out its name"
    assert homes.runs.show("@latest").name == third
    assert homes.runs.show("@latest-1").name == first
    with pytest.raises(NotFoundError, match="this home has begun 1"):
        homes.other.show("@latest-1")
    assert homes.other.runs(limit=20, app="another") == []


def test_a_run_is_shown_after_its_workflow_is_gone(homes: TwoHomes) -> None:
    run = homes.enter().name
    homes.ends(a="Succeeded", b="Failed")
    here = homes.drive(run)
    homes.cluster.delete("Workflow", run, NAMESPACE)
    there = homes.other.show(run)
    assert (there.state, there.seconds, list_states(there)) == (here.state, here.seconds, list_states(here))
    assert [task.failure for task in there.tasks] == [task.failure for task in here.tasks]
    assert homes.other.runs(limit=1)[0].state == "failed"


def test_what_a_home_knows_is_shown_while_the_cluster_is_away(homes: TwoHomes) -> None:
    run = homes.enter().name
    homes.plays("Succeeded")
    homes.drive(run)
    assert homes.other.show(run).state == "succeeded"
    homes.cluster.down = True
    assert homes.other.show(run).state == "succeeded"
    assert [record.name for record in homes.other.runs(limit=20)] == [run]
    with pytest.raises(UnavailableError):
        homes.other.show("another-run")
    nobody = homes.open(KubernetesSettings(), homes.folder.parent / "third-home")
    with pytest.raises(UnavailableError):
        nobody.runs(limit=20)


def test_a_run_that_there_is_nowhere_is_said_not_to_be(homes: TwoHomes) -> None:
    with pytest.raises(NotFoundError, match="There is no run yet"):
        homes.other.show("no-such-run")


def test_a_list_of_ended_runs_asks_once_however_many_there_are(homes: TwoHomes) -> None:
    homes.ends(a="Succeeded", b="Succeeded")
    for _ in range(5):
        homes.drive(homes.enter().name)
    homes.other.runs(limit=20)
    homes.cluster.calls.clear()
    assert len(homes.other.runs(limit=20)) == 5
    assert [(call.verb, call.kind) for call in homes.cluster.calls] == [("find", "ConfigMap")]
    homes.cluster.calls.clear()
    homes.other.show("@latest")
    assert len(homes.cluster.calls) <= 2


def test_one_more_run_takes_few_requests(homes: TwoHomes) -> None:
    homes.plays("Succeeded", "Succeeded")
    homes.drive(homes.enter().name)
    homes.cluster.calls.clear()
    run = homes.enter().name
    homes.drive(run)
    calls = [(call.verb, call.kind) for call in homes.cluster.calls]
    position = calls.index(("create", "Workflow"))
    assert calls[:position] == [("create", "ConfigMap"), ("get", "PersistentVolumeClaim"), ("apply", "ConfigMap")]
    of_the_run = [(verb, kind) for verb, kind in calls[position + 1 :] if kind == "ConfigMap"]
    assert of_the_run == [("get", "ConfigMap"), ("patch", "ConfigMap")]


def forbid_other_namespaces(cluster: MemoryCluster) -> None:
    find = cluster.find

    def find_in_one(kind: str, namespace: str | None = None, **how: Any) -> tuple[list[Manifest], str]:
        if namespace != NAMESPACE:
            raise AccessDeniedError("The cluster forbids the request. SCANFLOW_KUBERNETES_NAMESPACE=NAMESPACE")
        return find(kind, namespace, **how)

    cluster.find = find_in_one  # type: ignore[method-assign]


def test_with_rights_in_one_namespace_its_runs_are_found_or_the_setting_is_named(homes: TwoHomes) -> None:
    run = homes.enter().name
    forbid_other_namespaces(homes.cluster)
    with pytest.raises(AccessDeniedError, match="SCANFLOW_KUBERNETES_NAMESPACE="):
        homes.other.runs(limit=20)
    with pytest.raises(AccessDeniedError, match=f"no run '{run}' in this home.*SCANFLOW_KUBERNETES_NAMESPACE="):
        homes.other.show(run)
    own = homes.open(KubernetesSettings(namespace=NAMESPACE))
    assert [record.name for record in own.runs(limit=20)] == [run]
    another = homes.enter().name
    assert {record.name for record in homes.other.runs(limit=20)} == {run, another}, "of the namespaces that it knows"


def test_a_run_in_a_namespace_that_its_team_named_is_seen_and_resumed_by_its_setting(homes: TwoHomes) -> None:
    run = homes.enter().name
    homes.cluster.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ours"}})
    theirs = homes.open(KubernetesSettings(namespace="ours"), homes.folder.parent / "their-home")
    definition = RunDefinition(homes.app, homes.app.workflows[0])
    own = theirs.enter(definition).name
    assert [record.name for record in homes.other.runs(limit=20)] == [own, run]
    assert homes.other.show(own).model_extra["namespace"] == "ours"  # type: ignore[index]
    with pytest.raises(UsageError, match="SCANFLOW_KUBERNETES_NAMESPACE=ours"):
        homes.other.drive(own, definition, environment=lambda _: {}, observe=lambda _: None)
    assert [record.name for record in theirs.runs(limit=20)] == [own], "its home asks in its namespace alone"


def test_a_name_that_is_in_two_namespaces_is_not_guessed(homes: TwoHomes) -> None:
    homes.cluster.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ours"}})
    theirs = homes.open(KubernetesSettings(namespace="ours"), homes.folder.parent / "their-home")
    definition, name = RunDefinition(homes.app, homes.app.workflows[0]), RunName("calm-otter-417")
    homes.runs.enter(definition, name)
    theirs.enter(definition, name)
    with pytest.raises(UsageError, match=f"ours, {NAMESPACE}.*SCANFLOW_KUBERNETES_NAMESPACE=ours"):
        homes.other.show(name)
    assert homes.runs.show(name).model_extra["namespace"] == NAMESPACE  # type: ignore[index]


# Going on


def test_a_run_is_resumed_from_another_home_with_the_files_that_it_was_sent_with(homes: TwoHomes) -> None:
    run = homes.enter().name
    homes.ends(a="Succeeded", b="Failed")
    homes.drive(run)
    moved = homes.move_application()
    homes.folder.mkdir()
    (homes.folder / "step.py").write_text("print('another program at the same path')\n")
    homes.drive_there(run)
    assert list_steps(homes.workflow(f"{run}-2")) == ["b"]
    codes = {code["metadata"]["name"] for code in homes.cluster.find("ConfigMap", NAMESPACE)[0]}
    assert sum(name.startswith("code-") for name in codes) == 1, "no other code was sent"
    copy = Path(homes.other.definition(run).app.app_dir)
    assert (copy / "step.py").read_text() == (moved / "step.py").read_text()
    assert homes.runs.definition(run).app.app_dir == str(homes.folder), "its own home has its own folder"


def test_a_run_that_is_just_entered_is_not_taken_for_another_homes(homes: TwoHomes) -> None:
    create = homes.cluster.create
    listed: list[list[RunRecord]] = []

    def list_then(manifest: Manifest, **how: Any) -> Manifest:
        created = create(manifest, **how)
        if manifest["metadata"]["name"].startswith("run-"):
            listed.append(homes.make_another().runs(limit=20))
        return created

    homes.cluster.create = list_then  # type: ignore[method-assign]
    run = homes.enter().name
    assert listed == [[]]
    assert homes.runs.definition(run).app.app_dir == str(homes.folder)
    assert [record.name for record in homes.make_another().runs(limit=20)] == [run]
    assert homes.runs.definition(run).app.app_dir == str(homes.folder)


def test_a_run_where_the_files_are_in_an_image_asks_for_its_application(homes: TwoHomes) -> None:
    run = homes.enter().name  # its files were not sent yet
    homes.move_application()
    with pytest.raises(UsageError, match=r"client\.resume\('[-a-z0-9]+', app=app\)"):
        homes.drive_there(run)
    homes.folder.with_name("elsewhere").rename(homes.folder)
    homes.plays("Succeeded")
    definition = RunDefinition(homes.app, homes.app.workflows[0])
    record = homes.other.drive(run, definition, environment=lambda _: {}, observe=lambda _: None)
    assert record.state == "succeeded"


def test_a_run_that_is_too_large_with_its_progress_is_resumed_without(
    homes: TwoHomes, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = homes.enter().name
    homes.ends(a="Succeeded", b="Failed")
    homes.drive(run)
    [config_map] = homes.cluster.find("ConfigMap", NAMESPACE, labels="scanflow.dev/run")[0]
    limit = sum(map(len, config_map["data"].values())) + 100

    def check_size(size: int, what: str, _steps: int) -> None:
        if size > limit:
            raise UsageError(f"{what} takes {size} bytes")

    monkeypatch.setattr("scanflow.backends.kubernetes.batch.run_document.check_size", check_size)
    homes.drive_there(run)
    assert list_steps(homes.workflow(f"{run}-2")) == ["b"]


def test_an_end_that_is_too_large_with_its_tasks_is_recorded_without(homes: TwoHomes) -> None:
    run = homes.enter().name
    homes.ends(a="Succeeded", b="Failed")
    sizes: list[int] = []

    def refuse(verb: str, kind: str, patch: Manifest) -> ScanflowError | None:
        if (verb, kind) != ("patch", "ConfigMap") or sizes:
            return None
        sizes.append(len(str(patch)))
        return InvalidError("The cluster rejects it: Too long: must have at most 1048576 bytes.")

    homes.cluster.refuse(refuse)
    homes.drive(run)
    assert sizes
    shown = homes.other.show(run)
    assert (shown.state, list_states(shown)) == ("failed", {"a": "succeeded", "b": "failed"}), "by its Workflow"


def test_a_home_sees_that_another_one_has_resumed_its_run(homes: TwoHomes, monkeypatch: pytest.MonkeyPatch) -> None:
    run = homes.enter().name
    homes.ends(a="Succeeded", b="Failed")
    assert homes.drive(run).state == "failed"
    homes.cluster.stop_playing()
    homes.leave(run, monkeypatch, homes.other)
    homes.end(f"{run}-2", "Running", b="Running")
    assert list_states(homes.runs.show(run)) == {"a": "succeeded", "b": "running"}
    assert homes.runs.runs(limit=1)[0].state == "running"
    homes.end(f"{run}-2", "Succeeded", b="Succeeded")
    assert homes.runs.show(run).state == "succeeded"
    assert homes.runs.runs(limit=1)[0].state == "succeeded"


def test_a_running_workflow_is_watched_by_whoever_resumes_it(homes: TwoHomes, monkeypatch: pytest.MonkeyPatch) -> None:
    run = homes.enter().name
    homes.leave(run, monkeypatch)
    homes.end(run, "Running", a="Running")

    def end(event: Event) -> None:
        if event.kind == "task-started":
            homes.end(run, "Succeeded", a="Succeeded", b="Succeeded")

    assert homes.drive_there(run, observe=end).state == "succeeded"
    assert homes.list_workflows() == [run]


def test_of_two_homes_that_resume_a_run_at_once_one_does(homes: TwoHomes) -> None:
    run = homes.enter().name
    homes.ends(a="Succeeded", b="Failed")
    homes.drive(run)
    homes.other.show(run)
    apply = homes.cluster.apply

    def resume_first(manifest: Manifest, **how: Any) -> Manifest:
        if manifest["metadata"]["name"] == f"run-{run}":
            homes.cluster.apply = apply  # type: ignore[method-assign]
            homes.drive_there(run)
        return apply(manifest, **how)

    homes.cluster.apply = resume_first  # type: ignore[method-assign]
    with pytest.raises(ConflictError, match=rf"has just resumed the run '{run}'.*scanflow show {run}"):
        homes.drive(run)
    assert homes.list_workflows() == [run, f"{run}-2"]
    assert homes.runs.show(run).tasks[-1].attempts == 2


def break_off(homes: TwoHomes, run: str, monkeypatch: pytest.MonkeyPatch) -> Manifest:
    """Have a drive of the first home end just before it makes its Workflow, and return that."""
    create, held = homes.cluster.create, list[Manifest]()

    def hold(manifest: Manifest, **how: Any) -> Manifest:
        if manifest["kind"] == "Workflow":
            held.append(manifest)
            raise MemoryError("the laptop sleeps, or its process is killed")
        return create(manifest, **how)

    with monkeypatch.context() as patch:
        patch.setattr(homes.cluster, "create", hold)
        with pytest.raises(MemoryError):
            homes.drive(run)
    [workflow] = held
    return workflow


def test_a_drive_that_another_home_has_begun_is_waited_for(homes: TwoHomes, monkeypatch: pytest.MonkeyPatch) -> None:
    run = homes.enter().name
    homes.ends(a="Succeeded", b="Failed")
    homes.drive(run)
    homes.cluster.stop_playing()
    workflow = break_off(homes, run, monkeypatch)
    assert homes.other.show(run).state == "interrupted"
    waited: list[str] = []

    def wake(event: Event) -> None:
        if event.kind == "waiting":
            waited.append(event.what)
            homes.cluster.play("Workflow", lambda *_: homes.end(f"{run}-2", "Succeeded", b="Succeeded"))
            homes.cluster.create(workflow)

    homes.drive_there(run, observe=wake)
    assert len(waited) == 1
    assert homes.list_workflows() == [run, f"{run}-2"]


def test_a_drive_that_a_killed_home_has_begun_is_gone_on_with(homes: TwoHomes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scanflow.backends.kubernetes.batch.cluster_runs.BEGIN_TIMEOUT_S", 0.0)
    run = homes.enter().name
    break_off(homes, run, monkeypatch)
    homes.plays("Succeeded")
    assert homes.drive_there(run).state == "succeeded"
    assert homes.list_workflows() == [f"{run}-2"]
    assert homes.runs.show(run).state == "succeeded"


def test_who_was_late_with_its_workflow_ends_it(homes: TwoHomes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scanflow.backends.kubernetes.batch.cluster_runs.BEGIN_TIMEOUT_S", 0.0)
    run = homes.enter().name
    create = homes.cluster.create

    def sleep_first(manifest: Manifest, **how: Any) -> Manifest:
        if manifest["kind"] == "Workflow":
            monkeypatch.setattr(homes.cluster, "create", create)
            homes.plays("Succeeded")
            homes.drive_there(run)
        return create(manifest, **how)

    monkeypatch.setattr(homes.cluster, "create", sleep_first)
    with pytest.raises(ConflictError):
        homes.drive(run)
    assert homes.list_workflows() == [f"{run}-2"]


# Stopping


def test_a_run_is_stopped_from_another_home(homes: TwoHomes, monkeypatch: pytest.MonkeyPatch) -> None:
    run = homes.enter().name
    homes.leave(run, monkeypatch)
    homes.end(run, "Running", a="Running")
    assert homes.other.stop(run).state == "running"
    assert homes.workflow(run)["spec"]["shutdown"] == "Terminate"
    homes.end(run, "Failed", a="Failed")
    assert homes.runs.show(run).state == "stopped"
    assert homes.other.show(run).state == "stopped"


def test_a_run_that_is_stopped_elsewhere_before_its_workflow_is_made_is_stopped(homes: TwoHomes) -> None:
    run = homes.enter().name
    homes.plays("Running", "Succeeded")

    def stop(event: Event) -> None:
        if event.kind == "run-started":
            assert homes.list_workflows() == []
            assert homes.other.stop(run).state != "stopped", "it is not over there while it goes on here"

    assert homes.drive(run, observe=stop).state == "stopped"
    assert homes.workflow(run)["spec"]["shutdown"] == "Terminate"
    assert homes.drive(run).state == "succeeded", "it was that one drive that was to stop"


def test_a_run_that_is_stopped_elsewhere_after_it_was_entered_does_not_start(homes: TwoHomes) -> None:
    run = homes.enter().name
    assert homes.other.stop(run).state == "stopped"
    assert homes.drive(run).state == "stopped"
    assert homes.list_workflows() == []
    homes.plays("Succeeded")
    assert homes.drive(run).state == "succeeded"


def test_a_run_that_has_ended_elsewhere_is_not_stopped(homes: TwoHomes) -> None:
    run = homes.enter().name
    homes.plays("Succeeded")
    homes.drive(run)
    with pytest.raises(UsageError, match="has succeeded already"):
        homes.other.stop(run)


# Outputs, functions, what is gone


def play_reader(cluster: MemoryCluster, files: dict[str, bytes]) -> None:
    """Have the pods that read the claim find these files, whichever folders they are asked for."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))

    def play(cluster: MemoryCluster, pod: Manifest) -> None:
        name = pod["metadata"]["name"]
        cluster.logs[NAMESPACE, name] = base64.b64encode(packed.getvalue())
        cluster.edit("Pod", name, NAMESPACE, {"status": {"phase": "Succeeded"}}, manager="kubelet")

    cluster.stop_playing("Pod")
    cluster.play("Pod", play)


def read_log(runs: KubernetesRuns, run: str, task: str) -> str:
    with closing(runs.logs(run, task, stream="stdout")) as reader:
        return b"".join(part.data for part in reader.read().parts).decode()


def test_outputs_and_logs_are_read_from_the_claim(homes: TwoHomes) -> None:
    run = homes.enter().name
    homes.ends(a="Succeeded", b="Succeeded")
    homes.drive(run)
    homes.cluster.delete("Workflow", run, NAMESPACE)
    play_reader(homes.cluster, {"0/result": b"42"})
    assert homes.other.outputs(run, "a") == {"result": 42}
    play_reader(homes.cluster, {"0/stdout.log": b"hello\n"})
    assert read_log(homes.other, run, "a") == "hello\n"


def test_an_output_of_an_earlier_drive_is_not_taken_for_that_of_another_home(homes: TwoHomes) -> None:
    run = homes.enter().name
    homes.ends(a="Succeeded", b="Succeeded")
    homes.drive(run)
    play_reader(homes.cluster, {"0/result": b"1"})
    assert homes.runs.outputs(run, "a") == {"result": 1}
    homes.claim()
    homes.drive_there(run)  # what was on the old claim runs again
    play_reader(homes.cluster, {"0/result": b"2"})
    assert homes.runs.outputs(run, "a") == {"result": 2}


def test_another_home_knows_that_outputs_are_gone(homes: TwoHomes) -> None:
    run = homes.enter().name
    homes.ends(a="Succeeded", b="Failed")
    homes.drive(run)
    homes.claim()
    with pytest.raises(NotFoundError, match=rf"outputs of the run '{run}' are gone"):
        homes.other.outputs(run, "a")
    homes.drive_there(run)
    assert list_steps(homes.workflow(f"{run}-2")) == ["a", "b"]


def test_a_cleaned_run_does_not_come_back_where_it_was_not_known(homes: TwoHomes) -> None:
    run = homes.enter().name
    homes.plays("Succeeded")
    homes.drive(run)
    homes.cluster.delete("Namespace", NAMESPACE)
    assert homes.other.runs(limit=20) == []
    assert homes.runs.show(run).state == "succeeded", "its own home still knows it"


def enter_function(homes: TwoHomes) -> str:
    name = homes.runs.keep_function(FUNCTION)
    nodes = [sf.Executor(name="a", function=f"{name}:a"), sf.Executor(name="b", function=f"{name}:b")]
    workflow = sf.Workflow(name="train", nodes=nodes)
    app = homes.app.replace(workflows=(workflow,))
    return homes.runs.enter(RunDefinition(app, workflow)).name


def test_functions_by_value_are_taken_from_the_cluster(homes: TwoHomes) -> None:
    run = enter_function(homes)
    homes.ends(a="Succeeded", b="Failed")
    homes.drive(run)
    shutil.rmtree(homes.folder)
    homes.drive_there(run)
    assert list_steps(homes.workflow(f"{run}-2")) == ["b"]
    [config_map] = homes.cluster.find("ConfigMap", NAMESPACE, labels="scanflow.dev/run")[0]
    assert [name for name in config_map["binaryData"] if name.endswith(".pickle")] != []
    spun = homes.other.definition(run)
    spin = RunDefinition(spun.app, spun.workflow, step="a", past=run)
    third = homes.open(KubernetesSettings(), homes.folder.parent / "third-home")
    third.check(spin)


def test_a_function_that_no_run_of_the_namespace_signed_is_not_taken(homes: TwoHomes) -> None:
    run = enter_function(homes)
    [config_map] = homes.cluster.find("ConfigMap", NAMESPACE, labels="scanflow.dev/run")[0]
    [name] = config_map["binaryData"]
    forged = base64.b64encode(bytes(32) + FUNCTION).decode()
    homes.cluster.edit("ConfigMap", f"run-{run}", NAMESPACE, {"binaryData": {name: forged}})
    with pytest.raises(ScanflowError, match="not signed"):
        homes.drive_there(run)


def test_a_spin_of_another_home_shows_its_inputs(homes: TwoHomes) -> None:
    run = homes.enter().name
    homes.ends(a="Succeeded", b="Succeeded")
    homes.drive(run)
    workflow = homes.app.workflows[0].replace(edges=[sf.Dependency(dependee="a", depender="b")])
    spin = homes.runs.enter(RunDefinition(homes.app, workflow, step="b", past=run)).name
    assert list_states(homes.other.show(spin)) == {"a": "succeeded", "b": "pending"}


def test_a_name_that_another_home_has_taken_is_not_taken_again(homes: TwoHomes) -> None:
    definition = RunDefinition(homes.app, homes.app.workflows[0])
    run = homes.runs.enter(definition, RunName("calm-otter-417")).name
    assert homes.runs.enter(definition, run).name == run, "it is entered once"
    workflow = homes.app.workflows[0].replace(nodes=homes.app.workflows[0].nodes[:1])
    with pytest.raises(UsageError, match="already exists"):
        homes.other.enter(RunDefinition(homes.app, workflow), run)
    assert [record.workflow for record in homes.other.runs(limit=20)] == ["train"]
    assert len(homes.other.show(run).tasks) == 2


# The client


class Backend:
    """A backend with the runs of one home."""

    def __init__(self, runs: KubernetesRuns) -> None:
        self._runs = runs

    def batch(self) -> KubernetesRuns:
        return self._runs


def test_a_client_of_another_home_has_the_handle_of_a_run(homes: TwoHomes, monkeypatch: pytest.MonkeyPatch) -> None:
    run = homes.enter().name
    client = sf.Client(home=homes.other_home, backend=Backend(homes.other))  # type: ignore[arg-type]
    assert [record.name for record in client.runs()] == [run]
    homes.leave(run, monkeypatch)
    homes.end(run, "Running", a="Running")
    handle = client.run(run)
    assert handle.state == "running"
    client.stop(run)
    homes.end(run, "Failed", a="Failed")
    assert client.show(run).state == "stopped"
    homes.move_application()
    homes.ends(a="Succeeded", b="Succeeded")
    assert client.resume(run).state == "succeeded"
    play_reader(homes.cluster, {"0/result": b"42"})
    assert client.run(run).output("a") == 42
    assert homes.runs.show(run).state == "succeeded"


# MPI jobs


class TwoMPIHomes:
    """A cluster that runs MPI jobs, and two homes: ``runs`` and ``other``."""

    def __init__(self, cluster: MemoryCluster, settings: Settings, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        self.runs, self.other = self._open(settings.home), self._open(folder.parent / "other-home")
        self.settings = settings

    def _open(self, home: Path) -> KubernetesRuns:
        own = KubernetesSettings(mpi_image="lab/mpi:1")
        ensured = EnsuredEnvironment(test_mpi_runs.NAMESPACE, None)
        preparation: Any = RunPreparation(lambda _: ensured, own, lambda _: None, lambda _: None)  # type: ignore[arg-type,return-value]
        return KubernetesRuns(Settings(home=home, slots=2), self.cluster, own, preparation)


@pytest.fixture
def jobs(settings: Settings, tmp_path: Path) -> TwoMPIHomes:
    cluster = MemoryCluster(namespaces=(test_mpi_runs.NAMESPACE,))
    status = {"allocatable": {"cpu": "4", "memory": "8Gi"}, "conditions": [{"type": "Ready", "status": "True"}]}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n0"}, "spec": {}, "status": status}
    cluster.create(node)
    folder = tmp_path / "ring"
    folder.mkdir()
    return TwoMPIHomes(cluster, settings, folder)


def test_a_job_of_another_home_is_seen_with_its_ranks_output_and_logs(jobs: TwoMPIHomes) -> None:
    jobs.cluster.play("Job", test_mpi_runs.plays(0))
    record, _ = test_mpi_runs.drive(jobs.runs, test_mpi_runs.application(jobs.folder))
    assert [listed.state for listed in jobs.other.runs(limit=20)] == ["succeeded"]
    shown = jobs.other.show(record.name)
    assert [(task.task, task.state) for task in shown.tasks] == [
        ("ring.0", "succeeded"),
        ("ring.1", "succeeded"),
        ("ring", "succeeded"),
    ]
    assert jobs.other.outputs(record.name, "ring") == jobs.runs.outputs(record.name, "ring")
    assert test_mpi_runs.text(jobs.other, record.name, "ring.0") == "first\nno end of line\n"
    assert "[1] half of it\n" in test_mpi_runs.text(jobs.other, record.name, "ring", "stdout")


def test_a_log_that_is_only_in_another_home_is_said_to_be_there(jobs: TwoMPIHomes) -> None:
    jobs.cluster.play("Job", test_mpi_runs.plays(0))
    record, _ = test_mpi_runs.drive(jobs.runs, test_mpi_runs.application(jobs.folder))
    jobs.cluster.delete("Job", record.name, test_mpi_runs.NAMESPACE)
    jobs.cluster.delete("Pod", f"{record.name}-launcher-0", test_mpi_runs.NAMESPACE)
    assert jobs.other.show(record.name).state == "succeeded"
    assert jobs.other.outputs(record.name, "ring") == jobs.runs.outputs(record.name, "ring")
    with pytest.raises(NotFoundError, match="are gone"):
        jobs.other.logs(record.name, "ring")


def test_a_job_is_resumed_from_another_home_and_seen_in_its_own(jobs: TwoMPIHomes) -> None:
    jobs.cluster.play("Job", test_mpi_runs.plays(3, phase="Failed"))
    record, _ = test_mpi_runs.drive(jobs.runs, test_mpi_runs.application(jobs.folder))
    assert record.state == "failed"
    jobs.folder.rename(jobs.folder.with_name("elsewhere"))
    jobs.cluster.stop_playing()
    jobs.cluster.play("Job", test_mpi_runs.plays(0))
    again = jobs.other.drive(
        record.name, jobs.other.definition(record.name), environment=lambda _: {}, observe=lambda _: None
    )
    assert again.state == "succeeded"
    shown = jobs.runs.show(record.name)
    assert (shown.state, shown.tasks[-1].attempts) == ("succeeded", 2)
    assert {task.state for task in shown.tasks} == {"succeeded"}
    assert "first\n" in test_mpi_runs.text(jobs.runs, record.name, "ring.0")


def test_a_job_that_is_stopped_elsewhere_before_it_is_made_does_not_start(jobs: TwoMPIHomes) -> None:
    app = test_mpi_runs.application(jobs.folder)
    run = jobs.runs.enter(RunDefinition(app, app.workflows[0])).name
    assert jobs.other.show(run).state == "interrupted"
    assert jobs.other.stop(run).state == "stopped"
    stopped = jobs.runs.drive(run, environment=lambda _: {}, observe=lambda _: None)
    assert stopped.state == "stopped"
    assert jobs.cluster.find("Job", test_mpi_runs.NAMESPACE)[0] == []
