"""A server and an application for the built-in agents to be tried on: everything in memory, time moved by hand."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import scanflow as sf
from scanflow.agent.actions import Call
from scanflow.agent.agent_records import JSON, Action, Decision, Event, Intent, Sample
from scanflow.agent.context import Context
from scanflow.agent.decide import DecisionContext, Evaluation, FunctionCall, evaluate
from scanflow.agent.registry import Declared
from scanflow.agent.sensors.firing import Firing, fire
from scanflow.app.executor import Executor
from scanflow.app.scaling import Scaling
from scanflow.backends.run_records import DeviceUse, RunRecord, RunState, TaskRecord
from scanflow.backends.service_records import InstanceRecord, RevisionRecord, ServiceRecord, Shape
from scanflow.errors import NotFoundError, UnavailableError
from scanflow.knowledge.knowledge_port import KnowledgeBase
from scanflow.knowledge.knowledge_records import LATEST, ModelVersion
from scanflow.knowledge.memory import MemoryKnowledge
from scanflow.names import RunName, StepName
from scanflow.placement.queueing import Load
from scanflow_agents.templates import bookmarks, load_declared
from scanflow_agents.templates.template_client import ControlPlane
from tests.permissions import assert_permitted

START = 1_790_000_000.0


@dataclass
class FakeControlPlane(ControlPlane):
    """A server that remembers what it is told."""

    now: float = START
    records: list[RunRecord] = field(default_factory=list)
    step_outputs: dict[tuple[str, str], Any] = field(default_factory=dict)
    queue: dict[str, dict[str, Any]] = field(default_factory=dict)
    deployed: dict[str, ServiceRecord] = field(default_factory=dict)
    done: list[Action] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    away: bool = False
    """Whether it does not answer when something is put into the label queue."""

    def services(self) -> list[ServiceRecord]:
        return list(self.deployed.values())

    def service(self, name: str) -> ServiceRecord:
        if name not in self.deployed:
            raise NotFoundError(f"no {name}")
        return self.deployed[name]

    def runs(
        self, *, limit: int = 100, app: str | None = None, team: str | None = None, workflow: str | None = None
    ) -> list[RunRecord]:
        asked = {"app": app, "team": team, "workflow": workflow}
        listed = [record for record in reversed(self.records) if _matches(record, asked)][:limit]
        return [record.model_copy(update={"tasks": ()}) for record in listed]

    def run(self, name: str) -> RunRecord:
        for record in self.records:
            if record.name == name:
                return record
        raise NotFoundError(f"no {name}")

    def outputs(self, run: str, step: str) -> Any:
        if (run, step) not in self.step_outputs:
            raise NotFoundError("it left nothing")
        return self.step_outputs[run, step]

    def labels(self, app: str, *, state: str, team: str | None = None) -> list[dict[str, Any]]:
        mine = [item for item in self.queue.values() if (item["app"], item["state"]) == (app, state)]
        return [item for item in mine if team is None or item["team"] in {team, ""}]

    def want_labels(self, app: str, items: Sequence[Mapping[str, JSON]], *, team: str = "") -> list[dict[str, Any]]:
        if self.away:
            raise UnavailableError("the server is away")
        return [
            self.queue.setdefault(str(item["id"]), {**item, "app": app, "team": team, "state": "wanted"})
            for item in items
        ]

    def give_labels(self, app: str, labels: Mapping[str, JSON], *, by: str, team: str | None = None) -> None:
        if any(id not in self.queue or (team and self.queue[id]["team"] not in {team, ""}) for id in labels):
            raise NotFoundError("not wanted")
        for id, label in labels.items():
            self.queue[id] = {**self.queue[id], "state": "given", "label": label, "by": by, "app": app}

    def send_event(self, event: Event) -> None:
        self.events.append(event)

    def actions(
        self, app: str, *, states: Collection[str] = (), verdicts: Collection[str] = (), **asked: str | None
    ) -> list[Action]:
        return [
            action
            for action in reversed(self.done)
            if _matches(action.intent, {"app": app, **asked})
            and (not states or action.state in states)
            and (not verdicts or action.decision.verdict in verdicts)
        ][:100]

    # -- what a test has happen

    def ran(self, name: str, workflow: str, outputs: Mapping[str, Any], *, state: RunState = "succeeded") -> RunRecord:
        self.now += 10.0
        record = RunRecord(
            name=RunName(name),
            app="mnist",
            team="data",
            workflow=workflow,
            state=state,
            created=self.now,
            tasks=(TaskRecord(task=StepName("last"), step="last", state="succeeded"),),
        )
        self.records.append(record)
        self.step_outputs[name, "last"] = dict(outputs)
        return record

    def serves(
        self,
        model: str,
        *,
        affinity: Any = "any",
        instances: int = 1,
        ready: int = 1,
        created: float = 0.0,
        scaling: Scaling | None = None,
        load: Load | None = None,
        cpu_share: float | None = None,
        gpu_share: float | None = None,
        **more: Any,
    ) -> None:
        gpu = DeviceUse(number=0, uuid="GPU-0", sharing="exclusive", busy_share=gpu_share)
        devices = [] if gpu_share is None else [gpu.model_dump()]
        self.deployed["serve"] = ServiceRecord(
            name="serve",
            app="mnist",
            team="data",
            state="ready" if ready else "degraded",
            url="http://127.0.0.1:1",
            generation=1,
            shape=Shape(instances=instances, affinity=affinity),
            instances=tuple(
                InstanceRecord(instance=str(number), state="ready", cpu_share=cpu_share).with_details(devices=devices)
                for number in range(ready)
            ),
            revisions=(RevisionRecord(id="r1", models={"cnn": model}, **more),),
            created=created,
            scaling=scaling,
            load=load,
        )

    def record_action(self, intent: Intent, state: Any = "succeeded", **more: Any) -> Action:
        decided = more.pop("decision", Decision(intent=intent.id, verdict="act", reason="", at=self.now))
        action = Action(
            id=intent.id, intent=intent, state=state, decision=decided, began=self.now, ended=self.now, **more
        )
        self.done = [entry for entry in self.done if entry.id != action.id] + [action]
        return action


class Registry(MemoryKnowledge):
    """A knowledge base of which versions of a model may be deleted, as people do in MLflow."""

    def __init__(self, clock: Callable[[], datetime]) -> None:
        super().__init__(clock=clock)
        self.deleted: set[int] = set()

    def get_model(self, name: str, version: int | str = LATEST) -> ModelVersion:
        model = super().get_model(name, version)
        self._check(name, model.version)
        return model

    def set_model_alias(self, name: str, alias: str, version: int) -> ModelVersion:
        self._check(name, version)
        return super().set_model_alias(name, alias, version)

    def set_model_tags(self, name: str, version: int, tags: Mapping[str, str]) -> ModelVersion:
        self._check(name, version)
        return super().set_model_tags(name, version, tags)

    def _check(self, name: str, version: int) -> None:
        if version in self.deleted:
            raise NotFoundError(f"Model {name!r} has no version {version}.")


@dataclass
class LoopHarness:
    """The application with its knowledge base and server, as the four agents meet them."""

    folder: Path
    control_plane: FakeControlPlane = field(default_factory=FakeControlPlane)
    parameters: dict[str, dict[str, Any]] = field(default_factory=dict)
    unanswered: list[Intent] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.registry = Registry(lambda: datetime.fromtimestamp(self.control_plane.now, UTC))
        self.tracker: KnowledgeBase = self.registry
        self.fired = 0

    @property
    def app(self) -> sf.Application:
        return application(self.folder, self.parameters)

    def load(self, agent: str) -> Declared:
        app = self.app
        return load_declared(app, next(listed_agent for listed_agent in app.agents if listed_agent.name == agent))

    def context(self, agent: str) -> Context:
        return Context(
            app="mnist",
            team="data",
            agent=agent,
            clock=lambda: self.control_plane.now,
            parameters=self.parameters.get(agent, {}),
            tracker=self.tracker,
            services=self.control_plane,
            application=self.app,
            wanted=lambda: self.unanswered,
        )

    def fire(self, agent: str, sensor: str, **kwargs: Any) -> Any:
        return self.look(self.load(agent), agent, sensor, **kwargs)

    def look(self, declared: Declared, agent: str, sensor: str, *, event: Event | None = None, **kwargs: Any) -> Any:
        firing = Firing(context=self.context(agent), event=event, kwargs=kwargs)
        return asyncio.run(fire(declared.sensor(sensor), firing))

    def evaluations(self, agent: str, sensor: str, **kwargs: Any) -> list[Evaluation]:
        value = self.fire(agent, sensor, **kwargs)
        self.fired += 1
        sample = Sample(
            id="s", agent=agent, sensor=sensor, at=self.control_plane.now, value=value, cause=f"c:{self.fired}"
        )
        situation = DecisionContext(app="mnist", team="data", at=self.control_plane.now)
        declared = self.load(agent)
        evaluations = [evaluate(strategy, sample, situation) for strategy in declared.select_strategies(sensor)]
        assert [evaluation.error for evaluation in evaluations] == [None] * len(evaluations)
        assert_permitted(
            declared,
            [want for evaluation in evaluations for want in evaluation.actions],
            self.parameters.get(agent, {}),
        )
        return evaluations

    def wants(self, agent: str, sensor: str, **kwargs: Any) -> list[Intent | Call]:
        wants = [want for evaluation in self.evaluations(agent, sensor, **kwargs) for want in evaluation.actions]
        assert not any(isinstance(want, FunctionCall) for want in wants), "a template's function only chooses"
        return [want for want in wants if isinstance(want, Intent | Call)]

    def intent(self, agent: str, sensor: str, **kwargs: Any) -> Intent:
        [want] = self.wants(agent, sensor, **kwargs)
        assert isinstance(want, Intent)
        return want

    def call(self, agent: str, sensor: str, **kwargs: Any) -> Call:
        [want] = self.wants(agent, sensor, **kwargs)
        assert isinstance(want, Call)
        return want

    def pass_on(self, call: Call) -> list[Intent | Call]:
        return self.wants(call.agent, call.sensor, **call.kwargs)

    # -- what happens

    def log_predictions(self, count: int, *, app: str = "mnist", **tags: str) -> str:
        self.control_plane.now += 5.0
        tags = {"scanflow.kind": "predictions", "scanflow.service": "serve", **tags}
        metrics, at = {"predictions": float(count)}, datetime.fromtimestamp(self.control_plane.now, UTC)
        run = self.tracker.log_run(
            app, "data", name="predictions", metrics=metrics, tags=tags, started_at=at, ended_at=at
        )
        self.control_plane.now += 5.0
        return run.run_id

    def end_detection(
        self, run: str, ids: Sequence[str], *, run_ids: Sequence[str] = (), drifted: int = 1, **more: Any
    ) -> None:
        """Let a detection end that picked points with these ids."""
        points = [{"id": id, "run": "", "index": at, "guess": 3, "score": 1.0 - at / 1000} for at, id in enumerate(ids)]
        file = self.folder / "picked.json"
        file.write_text(json.dumps(points))
        metrics = {"n_picked": float(len(points))}
        self.tracker.log_run("mnist", "data", name="d", metrics=metrics, tags={"scanflow.run": run}, artifacts=file)
        outputs: dict[str, Any] = {
            "drifted": drifted,
            "n_picked": len(points),
            "n_anomalies": 3 * len(points),
            "run_ids": run_ids,
        }
        outputs["p_value"] = 1e-6 if drifted else 0.5
        self.control_plane.ran(run, "detector", {**outputs, **more})

    def note_look(self, run: str, *, predictions: int = 1000, picked: int = 0, **regimes: float) -> None:
        """Let the checker have noted a look: of these known regimes, or else an alarm."""
        metrics = {f"regime/{name}": share for name, share in regimes.items()}
        metrics |= {"drifted": float(not regimes), "picked": float(picked), "predictions": float(predictions)}
        bookmarks.note(self.context("checker"), "checked", tags={bookmarks.RUN_FIELD: run}, metrics=metrics)

    def version(self, **tags: str) -> int:
        file = self.folder / "model.txt"
        file.write_text("weights")
        model = self.tracker.register_model("mnist_cnn", file, app="mnist", team="data", tags=tags)
        return model.version

    def tags(self, version: int) -> Mapping[str, str]:
        return self.tracker.get_model("mnist_cnn", version).tags

    def promotion(self, version: int) -> str | None:
        return self.tags(version).get("scanflow.promotion")

    def champion(self) -> int:
        return self.tracker.get_model("mnist_cnn", "champion").version

    def end_retraining(self, run: str, champion: float, challenger: float, **more: Any) -> int:
        version = self.version(**{"scanflow.run": run})
        accuracies = {"champion_accuracy": champion, "challenger_accuracy": challenger}
        slices = [answers("current", 1000, champion, challenger), answers("clean", 2000, 0.97, 0.97)]
        versions = {"version": version, "champion_version": 1}
        self.control_plane.ran(run, "training", {**accuracies, **versions, "slices": slices, **more})
        return version

    def swap_model(self, version: int, **more: Any) -> Intent:
        """Have the executor put a version to use: it is served, and watched."""
        intent = self.intent("executor", "change_model", version=version, **more)
        self.control_plane.record_action(intent)
        self.control_plane.serves(f"models:/mnist_cnn/{version}", created=self.control_plane.deployed["serve"].created)
        return intent

    def promote(self, version: int) -> Intent:
        """Have a version put to use, watched to the end, and named the champion."""
        intent = self.swap_model(version)
        self.control_plane.now += 100.0
        self.fire("executor", "model_changed")
        assert self.champion() == version
        return intent

    def give_labels(self, ids: Sequence[str], *, purpose: str = "train", run: str = "r", guess: float = 1) -> None:
        fields: dict[str, Any] = {"run": run, "purpose": purpose, "data": {}, "guess": guess, "score": 0.5}
        self.control_plane.want_labels("mnist", [{"id": id, **fields} for id in ids])
        self.control_plane.give_labels("mnist", dict.fromkeys(ids, 7), by="ada")


def describe_progress(intent: Intent) -> str:
    """Return how a change of a model stands whose intent is not done yet."""
    return f"its change is in progress: {intent.id}"


def answers(name: str, n: int, champion: float, challenger: float, *, churn: int = 0) -> dict[str, Any]:
    """Return two models' answers to n points, of which each has ``churn`` right that the other has wrong."""
    old, new = round(champion * n), round(challenger * n)
    gained = churn + max(new - old, 0)
    return {"name": name, "n": n, "champion_right": old, "challenger_right": new, "gained": gained}


def _matches(item: object, asked: Mapping[str, str | None]) -> bool:
    return all(value is None or getattr(item, name) == value for name, value in asked.items())


def application(folder: Path, parameters: Mapping[str, Mapping[str, Any]] | None = None) -> sf.Application:
    options = parameters or {}
    names = ("tracker", "checker", "planner", "executor", *(["stream"] if "stream" in options else []))
    agents = [sf.Agent(name=name, template=name, parameters=options.get(name, {})) for name in names]
    train = Executor(name="train", mainfile="t.py", parameters={"labels": "", "model_uri": "", "evaluate": ""})
    about = {"run_ids": [], "detector": "ks", "reference": "", "model_name": "mnist_cnn"}
    detect = Executor(name="detect", mainfile="d.py", parameters=about)
    cnn = sf.Service(name="cnn", model="models:/mnist_cnn@champion")
    other = sf.Service(name="small", implementation="small.py:Small")
    return sf.Application(
        name="mnist",
        team="data",
        app_dir=folder,
        workflows=[
            sf.Workflow(name="training", nodes=[train]),
            sf.Workflow(name="detector", nodes=[detect]),
            sf.Workflow(name="serve", type="online", nodes=[cnn]),
            *([sf.Workflow(name="spare", type="online", nodes=[other])] if "spare" in options else []),
        ],
        agents=agents,
        tracker=sf.Tracker(),
    )


def list_events(harness: LoopHarness, type: str) -> list[Event]:
    return [event for event in harness.control_plane.events if event.type == type]
