"""A toy of the whole application that the four built-in agents watch: one number goes in, and which side of a bound it
is on comes out. Its drift is a shift of the numbers, with which the bound moves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from scanflow.knowledge import KnowledgeBase, open_knowledge
from tests.http_requests import HTTP
from tests.waiting import patient

MODEL = "side"
AGENTS = ("tracker", "checker", "planner", "executor")

_MODELS = """
import pickle
from pathlib import Path

MLMODEL = '''
flavors:
  sklearn: {pickled_model: model.pkl, serialization_format: pickle}
signature:
  inputs: '[{"type": "tensor", "tensor-spec": {"dtype": "float64", "shape": [-1, 1]}}]'
  outputs: '[{"type": "tensor", "tensor-spec": {"dtype": "int64", "shape": [-1]}}]'
'''


class Poison:
    def __reduce__(self):
        return (exec, ("raise RuntimeError('the weights are not what they should be')",))


def learnt(x, y):
    from sklearn.tree import DecisionTreeClassifier

    return DecisionTreeClassifier(max_depth=1, random_state=1).fit(x, y)


def save(model, folder):
    folder.mkdir(parents=True)
    (folder / "MLmodel").write_text(MLMODEL)
    (folder / "model.pkl").write_bytes(pickle.dumps(model))
    return folder


def load(folder):
    return pickle.loads((Path(folder) / "model.pkl").read_bytes())
"""

_APP = """
import json, os, tempfile
from pathlib import Path

import scanflow as sf

MODEL = {model!r}
APP, TEAM = "mnist", "tests"


def tracker():
    from scanflow.knowledge import open_knowledge

    return open_knowledge(Path(os.environ["SCANFLOW_HOME"]), os.environ["MLFLOW_TRACKING_URI"])


def note(*words):
    with open(Path(os.environ["TEST_FOLDER"]) / "ledger", "a") as ledger:
        ledger.write(" ".join(map(str, words)) + "\\n")


@sf.step
def detect(run_ids: list[str], detector: str) -> None:
    note("detect", *run_ids)
    if run_ids == ["none"]:  # nothing was recorded: it is about the alarm alone
        sf.output("drifted", False)
        return
    import numpy as np
    from scanflow.drift.prediction_data import collect

    new = collect(tracker(), run_ids)
    strange = np.flatnonzero(np.abs(new.x[:, 0]) > 5)
    drifted = 2 * len(strange) > len(new.x)
    picked = strange[:40] if drifted else strange[:0]
    points = [dict(id=new.ids[at], run="", index=int(at), guess=-1, score=1.0) for at in picked]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "picked.json").write_text(json.dumps(points))
        np.savez(Path(folder) / "picked.npz", x=new.x[picked])
        tags, metrics = {{"scanflow.run": os.environ["SCANFLOW_RUN"]}}, {{"n_picked": len(picked)}}
        tracker().log_run(APP, TEAM, name="detect", metrics=metrics, tags=tags, artifacts=Path(folder))
    for name, value in dict(drifted=drifted, n_picked=len(picked), n_anomalies=len(strange), run_ids=run_ids).items():
        sf.output(name, value)
    sf.output("p_value", 1e-9 if drifted else 0.5)


@sf.step
def train(labels: str, model_uri: str, kind: str) -> None:
    before = (Path(os.environ["TEST_FOLDER"]) / "ledger").read_text().count("train")
    kind = (kind.split() * (before + 1))[before]  # the first of these at the first time, and so on
    note("train", kind)
    if kind == "failing":
        raise RuntimeError("no such column")
    import models
    from scanflow.drift.prediction_data import load_labelled_points

    x, y = load_labelled_points(tracker(), labels)
    before = int(model_uri.rpartition("/")[2])
    with tempfile.TemporaryDirectory() as folder:
        champion = models.load(tracker().fetch_model(MODEL, Path(folder) / "champion", version=before))
        challenger = models.learnt(x, 1 - y if kind == "worse" else y)
        saved = models.save(models.Poison() if kind == "poisoned" else challenger, Path(folder) / "challenger")
        tags = {{"scanflow.run": os.environ["SCANFLOW_RUN"]}}
        version = tracker().register_model(MODEL, saved, app=APP, team=TEAM, tags=tags).version
    old, new = (model.predict(x) == y for model in (champion, challenger))
    counts = {{"n": len(y), "champion_right": int(old.sum()), "challenger_right": int(new.sum())}}
    sf.output("slices", [{{"name": "current", **counts, "gained": int((new & ~old).sum())}}])
    for name, right in (("champion", old), ("challenger", new)):
        sf.output(name + "_accuracy", float(right.mean()))
    for name, value in dict(version=version, labels=labels, champion_version=before).items():
        sf.output(name, value)


node = sf.Service(name=MODEL, model="models:/" + MODEL + "@champion")
app = sf.Application(
    name=APP,
    team=TEAM,
    workflows=[
        sf.Workflow(name="detector", nodes=[detect.bind([], "ks")]),
        sf.Workflow(name="training", nodes=[train.bind("", "", "better")]),
        sf.Workflow(name="serve", type="online", nodes=[node], serving=sf.Serving(grpc_port=0, record={record})),
    ],
    agents=[
        sf.Agent(name=name, template=name, parameters=given)
        for name, given in json.loads({parameters!r}).items()
    ],
    tracker=sf.Tracker(),
)
"""

_LABELLER = """
def truth(items, context):
    from scanflow.drift.prediction_data import arrays_of

    return {one["id"]: int(_x(one, context, arrays_of)[one["data"]["at"]][0] > 10.0) for one in items}


def _x(one, context, arrays_of):
    return arrays_of(context.tracker, one["data"]["tracked"], name=one["data"]["file"])["x"]
"""

_QUICK: dict[str, dict[str, Any]] = {
    "tracker": {"interval_s": 0.5, "min_predictions": 1000},
    "checker": {"interval_s": 0.5, "cool_down_s": 0, "labeller": "labeller.py:truth"},
    "planner": {
        "interval_s": 0.5,
        "cool_down_s": 0,
        "min_picked": 20,
        "min_n": 10,
        "training_parameters": {"kind": "better"},
    },
    "executor": {"interval_s": 0.5, "guard_s": 1, "settle_s": 0.5},
}


def files(*, record: int = 0, **parameters: dict[str, Any]) -> dict[str, str]:
    """Return the application's files; ``parameters`` are more of an agent's, by its name, ``record`` is the share of
    the predictions that is recorded."""
    parameters_by_agent = {agent: {**quick, **parameters.get(agent, {})} for agent, quick in _QUICK.items()}
    app = _APP.format(model=MODEL, record=record, parameters=json.dumps(parameters_by_agent))
    return {"app.py": app, "models.py": _MODELS, "labeller.py": _LABELLER}


def open_server_knowledge(home: Path) -> KnowledgeBase:
    return open_knowledge(home)


def add_version(knowledge: KnowledgeBase, folder: Path, *, bound: float, champion: bool = True) -> int:
    """Register a version that says on which side of ``bound`` a number is. ``folder`` is the application's."""
    import importlib.util

    import numpy as np

    spec = importlib.util.spec_from_file_location("toy_models", folder / "models.py")
    assert spec is not None
    assert spec.loader is not None
    models = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(models)
    x = np.array([[bound - 1], [bound + 1]])
    saved = models.save(models.learnt(x, np.array([0, 1])), folder / f"bound-{bound:g}")
    version = knowledge.register_model(MODEL, saved, app="mnist", team="tests").version
    if champion:
        knowledge.set_model_alias(MODEL, "champion", version)
    return version


def ask(url: str, *numbers: float) -> list[int]:
    data = [[number] for number in numbers]
    inputs = [{"name": "input-0", "shape": [len(data), 1], "datatype": "FP64", "data": data}]
    answer = HTTP.post(f"{url}/v2/models/serve/infer", json={"inputs": inputs}, timeout=patient(60))
    assert answer.status_code == 200, answer.text
    return [int(side) for side in answer.json()["outputs"][0]["data"]]


def on_its_side(number: float, bound: float) -> int:
    return int(number > bound)
