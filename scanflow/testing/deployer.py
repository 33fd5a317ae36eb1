"""The suite that every Deployer passes: subclass :class:`DeployerContract` and define the fixture ``deployer``.

A deployer may live longer than one test, with the runs of the tests before.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from scanflow.app.application import Application
from scanflow.app.references import Ref
from scanflow.backends.log_reader import LogPart
from scanflow.backends.run_records import Event, RunRecord, RunStarted, TaskEnded, TaskStarted
from scanflow.deployer import Deployer, RunRequest, TaskLog
from scanflow.errors import InvalidError, NotFoundError, UnavailableError, UsageError
from scanflow.testing.services import ServicesContract

__all__ = ["DeployerContract", "RunsContract"]

APP = """
import datetime
import decimal
import pathlib
import sys
import time
import scanflow as sf


@sf.step
def load(count: int = 3) -> list[int]:
    print("loading", count)
    print("a word of warning", file=sys.stderr)
    return list(range(count))


@sf.step
def double(number: int) -> int:
    return number * 2


@sf.step
def total(values: list[int]) -> int:
    if not pathlib.Path(__file__).with_name("mended").exists():
        raise ValueError("not mended yet")
    return sum(values)


@sf.step(retries=sf.Retry(limit=1, delay="10ms"))
def flaky(name: str = "attempts") -> int:
    count = pathlib.Path(__file__).parent / name
    count.write_text(count.read_text() + "x" if count.exists() else "x")
    if count.read_text() == "x":
        raise OSError("the first attempt fails")
    sf.output("attempts", len(count.read_text()))
    return 7


@sf.step
def even(number: int) -> str:
    return "even"


@sf.step
def odd(number: int) -> str:
    return "odd"


@sf.step
def pick(number: int) -> int:
    if number == 0:
        raise ValueError("not this one")
    return number


@sf.step
def wait(number: int) -> int:
    if number == 1 and not pathlib.Path(__file__).with_name("quick").exists():
        time.sleep(60)
    return number


@sf.step
def label(text: str = "1.0") -> str:
    return text


@sf.step
def leave(name: str) -> None:
    folder = sf.output_dir() / "notes"
    folder.mkdir()
    folder.joinpath(name).write_text("four")


class Reading(tuple):
    pass


VALUES = [
    ((1, [2, (3,)]), {1, 2}, {1: "a"}, b"x", datetime.date(2024, 2, 29), decimal.Decimal("1.10"), Reading((1, 2))),
    ["text", 1.5, None, [], {"$path": "x"}, pathlib.Path("/data/x")],
]


@sf.step
def give(number: int) -> object:
    return VALUES[number]


@sf.step
def joined(first: str | None, second: str | None) -> list:
    return [first, second]


numbers = load.bind()
doubled = double.map(numbers)
replicas = wait.map([0, 1, 2])
picked = pick.map([0, 1, 2])
aside = pick.options(name="aside").bind(number=1)
tried = flaky.bind()
branches = [
    tried,
    even.options(when=tried["attempts"].equals(1)).bind(tried),
    odd.options(when=tried["attempts"].equals(2)).bind(tried),
]
branches.append(joined.bind(branches[1], branches[2]))
nothing = even.options(name="nothing", when=tried["attempts"].equals(9)).bind(tried)
guarded = [
    tried,
    nothing,
    odd.options(name="high", when=nothing.output > 0.5).bind(tried),
    odd.options(name="after", when=nothing.output.equals(None)).bind(tried),
    even.options(name="only", when=nothing.output > 0.5).bind(nothing),
]
app = sf.Application(
    name="contract",
    team="tests",
    workflows=[
        sf.Workflow(name="sums", nodes=[numbers, doubled, total.bind(doubled)]),
        sf.Workflow(name="branches", nodes=branches),
        sf.Workflow(name="independent", nodes=[picked, total.bind(picked), aside, double.bind(number=aside)]),
        sf.Workflow(name="guarded", nodes=[*guarded, label.bind()]),
        sf.Workflow(name="files", nodes=[label.bind(), leave.map(["a.txt", "b.txt"])]),
        sf.Workflow(name="values", nodes=[give.map([0, 1])]),
        sf.Workflow(name="replicas", nodes=[replicas, total.bind(replicas)]),
    ],
)
"""


class RunsContract:
    """The contract of deployers for runs."""

    interrupts = True
    """Whether a stopped task ends at once. Else it runs to its end, and its result is discarded."""

    keeps_files = True
    """Whether steps leave files, which the backend lists."""

    scratch = ""
    """Folder for files that later attempts read: beside the application's file. Where that cannot be written, as in a
    container, a folder that ends with ``/``; the run's outputs are such a folder everywhere: ``/workflow/``."""

    @pytest.fixture
    def source(self, tmp_path: Path) -> Path:
        """The file of the application that the tests run."""
        path = tmp_path / "contract_app.py"
        path.write_text(APP, encoding="utf-8")
        return path

    @pytest.fixture
    def app(self, source: Path) -> Application:
        """The application that the tests run."""
        from scanflow.application_loading import load_application

        return load_application(str(source))[0]

    def test_an_output_is_what_the_step_returned(self, deployer: Deployer, app: Application) -> None:
        run = deployer.run(RunRequest(app, "values"))
        [give] = app.workflow("values").steps
        expected = sys.modules[give.target.call.function.__module__].VALUES  # type: ignore[union-attr]
        outputs = deployer.outputs(run.name, "give")
        assert isinstance(outputs, list)
        assert outputs == [{"result": value} for value in expected]
        for value, result in zip(expected, [task["result"] for task in outputs], strict=True):
            assert list(map(type, result)) == list(map(type, value))
        assert deployer.outputs(run.name, "give.1") == {"result": expected[1]}

    def test_a_run_has_events_is_kept_and_is_spun(self, deployer: Deployer, app: Application, source: Path) -> None:
        (source.parent / "mended").touch()
        events: list[Event] = []
        good = deployer.run(RunRequest(app, "sums", source=source), observe=events.append)
        assert good.state == "succeeded"
        ended = [event.record.task for event in events if isinstance(event, TaskEnded)]
        assert sorted(ended) == ["double.0", "double.1", "double.2", "load", "total"]
        assert (ended[0], ended[-1]) == ("load", "total")
        assert deployer.outputs(good.name, "total") == {"result": 6}
        assert deployer.outputs(good.name, "double") == [{"result": 0}, {"result": 2}, {"result": 4}]
        assert deployer.show(good.name) == deployer.show("@latest") == good
        assert good.parents == {"load": (), "double": ("load",), "total": ("double",)}
        assert deployer.runs(limit=1)[0].parents == {}, "a list has neither tasks nor graphs"
        assert _text(deployer.logs(TaskLog(good.name, "load"))) == b"loading 3\n"
        assert _text(deployer.logs(TaskLog(good.name, "load", stream="stderr"))) == b"a word of warning\n"
        assert _text(deployer.logs(TaskLog(good.name, "load"), follow=True)) == b"loading 3\n"
        both = _text(deployer.logs(TaskLog(good.name, "load", stream="both")))
        assert sorted(both.splitlines()) == [b"a word of warning", b"loading 3"]
        with pytest.raises(UsageError, match="has succeeded already; there is nothing to stop"):
            deployer.stop(good.name)
        spun = deployer.run(RunRequest(parameters={"total.values": [5, 6]}, run=good.name, step="total"))
        own = [run.name for run in deployer.runs(limit=100) if run.name in {spun.name, good.name}]
        assert own == [spun.name, good.name], "the newest run comes first, of whoever's there are"
        assert deployer.show("@latest-1").name == good.name
        assert deployer.outputs(spun.name, "total") == {"result": 11}
        assert deployer.outputs(good.name, "total") == {"result": 6}
        with pytest.raises(NotFoundError, match=r"no node 'totla'. Did you mean 'total'"):
            deployer.run(RunRequest(run=good.name, step="totla"))
        for name in ("laod", "lo_ad"):  # as a function may be named
            with pytest.raises(NotFoundError, match=rf"no log of '{name}'. Did you mean 'load'"):
                list(deployer.logs(TaskLog(good.name, name)))
            with pytest.raises(NotFoundError, match=rf"'{name}' has no outputs in the run .* Did you mean 'load'"):
                deployer.outputs(good.name, name)

    def test_retries_and_conditions_are_honoured(self, deployer: Deployer, app: Application, source: Path) -> None:
        events: list[Event] = []
        request = RunRequest(app, "branches", parameters={"name": f"{self.scratch}attempts"}, source=source)
        record = deployer.run(request, observe=events.append)
        assert {task.task: (task.state, task.attempts) for task in record.tasks} == {
            "flaky": ("succeeded", 2),
            "even": ("skipped", 0),
            "odd": ("succeeded", 1),
            "joined": ("succeeded", 1),
        }
        retried = [
            event.retry_in_s for event in events if isinstance(event, TaskEnded) and event.record.state == "failed"
        ]
        assert retried == [0.01]
        assert deployer.outputs(record.name, "flaky") == {"result": 7, "attempts": 2}
        assert deployer.outputs(record.name, "joined") == {"result": [None, "odd"]}
        log = TaskLog(record.name, "flaky", stream="stderr", attempt=1)
        assert b"the first attempt fails" in _text(deployer.logs(log))

    def test_a_condition_on_the_output_of_a_skipped_step_skips(
        self, deployer: Deployer, app: Application, source: Path
    ) -> None:
        request = RunRequest(app, "guarded", parameters={"name": f"{self.scratch}guarded"}, source=source)
        record = deployer.run(request)
        assert record.state == "succeeded"
        skipped = {"nothing", "high", "only"}
        assert {task.task for task in record.tasks if task.state == "skipped"} == skipped
        assert {task.task for task in record.tasks if task.state == "succeeded"} == {"flaky", "after", "label"}

    def test_a_fan_out_over_no_items_has_ended_with_an_empty_list(
        self, deployer: Deployer, app: Application, source: Path
    ) -> None:
        failed = deployer.run(RunRequest(app, "sums", parameters={"count": 0}, source=source))
        assert (failed.state, _get_states(failed)["double"]) == ("failed", "empty")
        assert deployer.outputs(failed.name, "double") == []
        (source.parent / "mended").touch()
        events: list[Event] = []
        done = deployer.run(RunRequest(run=failed.name), observe=events.append)
        assert (done.state, _get_states(done)) == (
            "succeeded",
            {"load": "succeeded", "double": "empty", "total": "succeeded"},
        )
        assert [event.record.attempts for event in events if isinstance(event, TaskEnded)][-1] == 2
        assert deployer.show(done.name) == done
        assert deployer.outputs(done.name, "total") == {"result": 0}
        spun = deployer.run(RunRequest(run=done.name, step="total"))
        assert (spun.state, _get_states(spun)["double"]) == ("succeeded", "empty")
        alone = deployer.run(RunRequest(run=done.name, step="double"))
        assert (alone.state, deployer.outputs(alone.name, "double")) == ("succeeded", [])

    def test_a_spin_of_the_latest_run_is_of_the_latest_whole_one(
        self, deployer: Deployer, app: Application, source: Path
    ) -> None:
        (source.parent / "mended").touch()
        whole = deployer.run(RunRequest(app, "sums", parameters={"count": 2}, source=source))
        first = deployer.run(RunRequest(parameters={"count": 5}, run="@latest", step="load"))
        assert deployer.show("@latest").name == first.name
        second = deployer.run(RunRequest(run="@latest", step="total"))
        assert deployer.outputs(second.name, "total") == deployer.outputs(whole.name, "total") == {"result": 2}
        assert {task.origin for task in second.tasks if task.step == "double"} == {whole.name}

    def test_a_short_name_cuts_no_edge_and_no_item(self, deployer: Deployer, app: Application, source: Path) -> None:
        (source.parent / "mended").touch()
        before = deployer.runs()
        for name, full_name in (("values", "total.values"), ("number", "double.number")):
            with pytest.raises(InvalidError, match=rf"sets plain values only.*write the full name: {full_name}"):
                deployer.run(RunRequest(app, "sums", parameters={name: [1]}, source=source))
        assert deployer.runs() == before
        cut = deployer.run(RunRequest(app, "sums", parameters={"total.values": [5]}, source=source))
        assert deployer.outputs(cut.name, "total") == {"result": 5}
        with pytest.raises(InvalidError, match=r"'values' of the step 'total' is fed by 'double\.result'"):
            deployer.run(
                RunRequest(app, parameters={"values": [1]}, run=_run_sums(deployer, app, source), step="total")
            )

    def test_parameters_given_as_text_are_what_the_annotations_say(
        self, deployer: Deployer, app: Application, source: Path
    ) -> None:
        name = {"name": f"{self.scratch}texts"}
        run = deployer.run(RunRequest(app, "guarded", parameters=name, texts={"text": "1.10"}, source=source))
        assert deployer.outputs(run.name, "label") == {"result": "1.10"}
        spun = deployer.run(RunRequest(texts={"text": "1234567e100"}, run=run.name, step="label"))
        assert deployer.outputs(spun.name, "label") == {"result": "1234567e100"}
        by_app = deployer.run(RunRequest(app, texts={"label.text": "12345"}, run=run.name, step="label"))
        assert deployer.outputs(by_app.name, "label") == {"result": "12345"}
        sums = deployer.plan(RunRequest(app, "sums", texts={"count": "4"}))
        assert [step.name for step in sums.steps] == ["load", "double", "total"]
        with pytest.raises(InvalidError, match="'count' is 'many'"):
            deployer.plan(RunRequest(app, "sums", texts={"count": "many"}))

    def test_files_that_steps_left_are_listed(self, deployer: Deployer, app: Application, source: Path) -> None:
        run = deployer.run(RunRequest(app, "files" if self.keeps_files else "guarded", source=source))
        with pytest.raises(NotFoundError, match=r"has no task 'lable'. Did you mean 'label'"):
            deployer.files(run.name, "lable")
        if not self.keeps_files:
            return
        files = deployer.files(run.name)
        assert [(file.task, file.name, file.size_bytes) for file in files] == [
            ("leave.0", "notes/a.txt", 4),
            ("leave.1", "notes/b.txt", 4),
        ]
        assert deployer.files(run.name, "leave") == files
        assert [Path(file.path).name for file in deployer.files(run.name, "leave.1")] == ["b.txt"]
        assert deployer.files(run.name, "label") == []

    def test_a_failed_run_says_why_and_resume_runs_what_had_not_finished(
        self, deployer: Deployer, app: Application, source: Path
    ) -> None:
        failed = deployer.run(RunRequest(app, "sums", source=source))
        assert failed.state == "failed"
        last = next(task for task in failed.tasks if task.task == "total")
        assert last.failure is not None
        assert "ValueError: not mended yet" in last.failure.cause
        (source.parent / "mended").touch()
        events: list[Event] = []
        record = deployer.run(RunRequest(run=failed.name), observe=events.append)
        assert (record.name, record.state) == (failed.name, "succeeded")
        assert [event.record.task for event in events if isinstance(event, TaskEnded)] == ["total"]

    def test_after_a_failure_what_does_not_need_it_goes_on(
        self, deployer: Deployer, app: Application, source: Path
    ) -> None:
        failed = deployer.run(RunRequest(app, "independent", source=source))
        assert failed.state == "failed"
        assert {task.task: task.state for task in failed.tasks} == {
            "pick.0": "failed",
            "pick.1": "succeeded",
            "pick.2": "succeeded",
            "total": "pending",
            "aside": "succeeded",
            "double": "succeeded",
        }
        assert deployer.outputs(failed.name, "double") == {"result": 2}

    def test_a_run_that_was_begun_goes_on_by_itself_and_is_waited_for(
        self, deployer: Deployer, app: Application, source: Path
    ) -> None:
        (source.parent / "mended").touch()
        begun = deployer.begin(RunRequest(app, "sums", source=source))
        events: list[Event] = []
        done = deployer.wait(begun.name, observe=events.append)
        assert (done.name, done.state) == (begun.name, "succeeded")
        ended = [event.record.task for event in events if isinstance(event, TaskEnded)]
        assert sorted(ended) == ["double.0", "double.1", "double.2", "load", "total"]
        assert deployer.wait(begun.name) == deployer.show(begun.name) == done
        with pytest.raises(NotFoundError, match=r"no workflow 'smus'. Did you mean 'sums'"):
            deployer.begin(RunRequest(app, "smus"))
        if not self.interrupts:
            return
        endless = deployer.begin(RunRequest(app, "replicas", source=source)).name
        while not any(task.state == "running" for task in deployer.show(endless).tasks):
            with pytest.raises(
                UnavailableError, match=rf"'{endless}' is still running after 0\.2 s.*scanflow stop {endless}"
            ):
                deployer.wait(endless, timeout_s=0.2)
        deployer.stop(endless)
        assert deployer.wait(endless).state == "stopped"
        again = deployer.begin(RunRequest(run=endless)).name
        assert (again, deployer.show(again).state) == (endless, "running")
        deployer.stop(again)
        assert deployer.wait(again).state == "stopped"

    def test_a_plan_checks_everything_and_runs_nothing(self, deployer: Deployer, app: Application) -> None:
        before = [(run.name, run.state) for run in deployer.runs()]  # pods of a stopped run may still be ending
        plan = deployer.plan(RunRequest(app, "sums", parameters={"count": 9}))
        assert [step.name for step in plan.steps] == ["load", "double", "total"]
        with pytest.raises(InvalidError, match="'count' is 'many'"):
            deployer.plan(RunRequest(app, "sums", parameters={"count": "many"}))
        with pytest.raises(NotFoundError, match="There is no run"):
            deployer.show("nope")
        with pytest.raises(NotFoundError, match=r"no workflow 'smus'. Did you mean 'sums'"):
            deployer.run(RunRequest(app, "smus"))
        with pytest.raises(NotFoundError, match=r"no parameter 'cuont'. Did you mean 'count'"):
            deployer.run(RunRequest(app, "sums", parameters={"cuont": 1}))
        assert [(run.name, run.state) for run in deployer.runs()] == before

    def test_one_replica_of_a_fan_out_is_stopped_and_the_others_go_on(
        self, deployer: Deployer, app: Application, source: Path
    ) -> None:
        if not self.interrupts:
            (source.parent / "quick").touch()
        (source.parent / "mended").touch()

        def stop(event: Event) -> None:
            if isinstance(event, TaskStarted) and event.task == "wait.1":
                deployer.stop(event.run, "wait.1")

        stopped = deployer.run(RunRequest(app, "replicas", source=source), observe=stop)
        states = {task.task: task.state for task in stopped.tasks}
        assert states == {"wait.0": "succeeded", "wait.1": "stopped", "wait.2": "succeeded", "total": "pending"}
        assert stopped.state == "stopped"
        with pytest.raises(UsageError, match=r"'wait.1' of the run .* is not running: it is stopped"):
            deployer.stop(stopped.name, "wait.1")
        with pytest.raises(NotFoundError, match=r"has no task 'wiat'. Did you mean 'wait'"):
            deployer.stop(stopped.name, "wiat")
        (source.parent / "quick").touch()
        assert deployer.run(RunRequest(run=stopped.name)).state == "succeeded"
        assert deployer.outputs(stopped.name, "total") == {"result": 3}

    def test_a_resumed_run_has_the_tasks_and_items_of_its_workflow_as_it_is_now(
        self, deployer: Deployer, app: Application, source: Path
    ) -> None:
        def change(items: list[int], **changed: Any) -> Application:
            workflow = app.workflow("replicas")
            first, last = workflow.nodes
            return app.with_workflow(workflow.replace(nodes=[first.replace(for_each=items), last.replace(**changed)]))

        run = deployer.run(RunRequest(change([]), "replicas", source=source))
        assert _get_states(run) == {"wait": "empty", "total": "failed"}
        resumed = deployer.run(RunRequest(change([0, 2, 3]), run=run.name))
        done = {f"wait.{place}": "succeeded" for place in range(3)}
        assert _get_states(resumed) == {**done, "total": "failed"}
        (source.parent / "mended").touch()
        events: list[Event] = []
        resumed = deployer.run(RunRequest(change([3, 2]), run=run.name), observe=events.append)
        assert _get_states(resumed) == {"wait.0": "succeeded", "wait.1": "succeeded", "total": "succeeded"}
        started = next(event for event in events if isinstance(event, RunStarted))
        assert (started.kept, started.changed) == (1, ("wait.0",))
        assert deployer.outputs(run.name, "wait") == [{"result": 3}, {"result": 2}]
        assert deployer.outputs(run.name, "total") == {"result": 5}
        resumed = deployer.run(RunRequest(change([3, 2, 4]), run=run.name), observe=events.append)
        assert deployer.outputs(run.name, "total") == {"result": 9}, "what came of another list is not kept"
        renamed = deployer.run(RunRequest(change([3, 2, 4], name="sum"), run=run.name))
        assert _get_states(renamed) == {**done, "sum": "succeeded"}
        with pytest.raises(NotFoundError, match="'total' has no outputs"):
            deployer.outputs(run.name, "total")
        none = deployer.run(RunRequest(change([], name="sum"), run=run.name))
        assert _get_states(none) == {"wait": "empty", "sum": "succeeded"}
        assert deployer.outputs(run.name, "sum") == {"result": 0}
        skipped = deployer.run(RunRequest(change([5, 6], name="sum", when=Ref(step="wait").equals(None)), run=run.name))
        assert _get_states(skipped) == {"wait.0": "succeeded", "wait.1": "succeeded", "sum": "skipped"}


class DeployerContract(RunsContract, ServicesContract):
    """The complete contract of a deployer, for runs and services."""


def _run_sums(deployer: Deployer, app: Application, source: Path) -> str:
    return deployer.run(RunRequest(app, "sums", source=source)).name


def _get_states(record: RunRecord) -> dict[str, str]:
    return {str(task.task): task.state for task in record.tasks}


def _text(parts: Iterable[LogPart]) -> bytes:
    return b"".join(part.data for part in parts)
