"""The tutorial's loop, in parts: what is kept for later, what is sent, who labels, and what detectors compare with."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import scanflow as sf
from scanflow.agent.context import Context
from scanflow.application_loading import load_application
from scanflow.drift.prediction_data import collect
from scanflow.errors import NotFoundError
from scanflow.knowledge.memory import MemoryKnowledge
from scanflow.modules import load_module

TUTORIAL = Path(__file__).resolve().parents[2] / "tutorials" / "mnist"

pytestmark = pytest.mark.skipif(find_spec("tensorflow") is None, reason="tensorflow is not installed")


@pytest.fixture
def tutorial(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(TUTORIAL))
    before = set(sys.modules)

    def load(name: str) -> ModuleType:
        return load_module(TUTORIAL / f"{name}.py")

    yield load
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(TUTORIAL)):
            del sys.modules[name]


@pytest.fixture
def knowledge() -> MemoryKnowledge:
    return MemoryKnowledge()


def pictures(count: int, *, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(0, 256, (count, 28, 28), dtype=np.uint8)


def make_digits(digits: Any, *, shuffled: bool, count: int = 100) -> dict[str, Any]:
    y = np.arange(count, dtype=np.uint8) % 10
    data = digits.Digits(pictures(40), y[:40], pictures(count, seed=1), y, shuffled=shuffled)
    dataset: dict[str, Any] = digits.in_use(data)
    return dataset


def keys(x: Any) -> set[bytes]:
    return {row.tobytes() for row in x}


@pytest.mark.parametrize("shuffled", [True, False])
def test_what_is_sent_is_neither_judged_by_nor_compared_with(tutorial: Any, shuffled: bool) -> None:
    dataset = make_digits(tutorial("steps/digits"), shuffled=shuffled)

    assert (len(dataset["x_sent"]), len(dataset["x_clean"])) == (75, 25)
    assert not keys(dataset["x_sent"]) & (
        keys(dataset["x_clean"]) | keys(dataset["x_reference"]) | keys(dataset["x_train"])
    )
    reference = dataset["x_train"] if shuffled else dataset["x_clean"]
    assert np.array_equal(dataset["x_reference"], reference)
    assert np.array_equal(pictures(100, seed=1)[dataset["sent_rows"]], dataset["x_sent"])


def test_of_drifted_pictures_only_those_are_sent_that_no_model_is_judged_by(tutorial: Any, tmp_path: Path) -> None:
    dataset, traffic = make_digits(tutorial("steps/digits"), shuffled=False), tutorial("traffic")
    y, fog = np.arange(100, dtype=np.uint8) % 10, pictures(100, seed=2)
    np.savez(tmp_path / "c.npz", y=y, fog=fog, stripe=255 - fog)

    x, labels = traffic.drifted_pictures(str(tmp_path / "c.npz"), dataset, 100)

    assert np.array_equal(x, np.concatenate([fog[dataset["sent_rows"]], 255 - fog[dataset["sent_rows"]]]))
    assert np.array_equal(labels, np.tile(dataset["y_sent"], 2))

    np.savez(tmp_path / "other.npz", y=y[:7], fog=fog[:7])
    assert len(traffic.drifted_pictures(str(tmp_path / "other.npz"), dataset, 100)[0]) == 7

    np.savez(tmp_path / "none.npz", y=np.arange(3), fog=np.zeros((3, 5)))
    with pytest.raises(SystemExit, match="needs labels y"):
        traffic.drifted_pictures(str(tmp_path / "none.npz"), {}, 100)

    dataset = make_digits(tutorial("steps/digits"), shuffled=True)
    x, labels = traffic.drifted_pictures("", dataset, 100)
    assert x.shape == dataset["x_sent"].shape
    assert np.array_equal(labels, dataset["y_sent"])
    assert not np.array_equal(x, dataset["x_sent"]), "without a file they are made of those that are sent"


@pytest.mark.parametrize("line", ["dirty 5", "clean", "clean -1", "clean much", "drifted 1e9", ""])
def test_an_order_that_makes_no_sense_is_refused(tutorial: Any, line: str) -> None:
    order = tutorial("traffic").Order("clean", 1.0)
    with pytest.raises(ValueError, match=r"."):
        order.take(line)
    assert (order.kind, order.rate) == ("clean", 1.0)


def log_predictions(knowledge: MemoryKnowledge, tmp_path: Path, name: str, kind: str = "file", /, **arrays: Any) -> str:
    file = tmp_path / name
    np.savez(file, **arrays)
    return knowledge.log_run("mnist", "datascience", tags={"scanflow.kind": kind}, artifacts=file).run_id


def test_the_truth_labels_what_was_picked_and_nothing_else(
    tutorial: Any, knowledge: MemoryKnowledge, tmp_path: Path
) -> None:
    archive, labelling = tutorial("archive"), tutorial("labelling")
    x = pictures(6)
    archive.keep_truth(knowledge, "mnist", "datascience", x[:3], [7, 8, 9])
    archive.keep_truth(knowledge, "mnist", "datascience", x[3:4], [1])
    tracked = log_predictions(knowledge, tmp_path, "picked.npz", x=x[::-1].astype(np.float32))
    items = [{"id": f"r:{at}", "data": {"tracked": tracked, "file": "picked.npz", "at": at}} for at in range(len(x))]
    context = Context(app="mnist", team="datascience", agent="checker", clock=lambda: 0.0, tracker=knowledge)

    assert labelling.ground_truth(items, context) == {"r:5": 7, "r:4": 8, "r:3": 9, "r:2": 1}


def test_the_newest_pictures_are_used_and_without_a_training_it_says_so(
    tutorial: Any, knowledge: MemoryKnowledge, tmp_path: Path
) -> None:
    archive = tutorial("archive")
    with pytest.raises(NotFoundError, match="Train first"):
        archive.pictures(knowledge, "mnist", "datascience")
    for number in (1, 2):
        log_predictions(knowledge, tmp_path, "dataset.npz", "dataset", x_sent=pictures(number))
    assert len(archive.pictures(knowledge, "mnist", "datascience")["x_sent"]) == 2


def test_pictures_in_every_form_that_the_service_takes_are_looked_at_together(
    tutorial: Any, knowledge: MemoryKnowledge, tmp_path: Path
) -> None:
    prepared, x = tutorial("serving/pictures").prepared, pictures(9)
    mixed = (x[:3].reshape(3, -1) / 255).astype(np.float64)
    mixed[1] *= 255  # one client sends fractions, another whole numbers, both as floats
    forms = [
        (x, x),
        (x[0], x[:1]),
        (x[1].reshape(-1), x[1:2]),
        (np.concatenate([x[2], x[3]]).astype(np.int64), x[2:4]),  # two requests of one picture each
        (x[..., None], x),
        (x[4][..., None], x[4:5]),
        (mixed, x[:3]),
        ((x[5] / 255).astype(np.float32), x[5:6]),
    ]
    for form, are in forms:
        assert np.array_equal(prepared(form), are), form.shape
    runs = [log_predictions(knowledge, tmp_path, "r1-1.npz", **{"input:x": form}) for form, _ in forms]
    bad = np.stack([x[0] / 255, np.full((28, 28), np.nan), x[1] / 255])
    runs.append(log_predictions(knowledge, tmp_path, "r1-1.npz", **{"input:x": bad}))
    runs.append(log_predictions(knowledge, tmp_path, "r1-1.npz", **{"input:x": np.zeros((1, 5))}))

    data = collect(knowledge, runs, prepare=prepared)

    assert np.array_equal(data.x, np.concatenate([*(are for _, are in forms), x[:2]]))
    assert len(set(data.ids)) == len(data.x)
    assert (data.n_left_out, len(data.left_out)) == (2, 2)


def test_a_picture_of_no_numbers_is_refused(tutorial: Any) -> None:
    with pytest.raises(ValueError, match="from 0 to 1; this is from nan"):
        tutorial("serving/pictures").Pictures().transform_input(np.full((28, 28), np.nan))


def test_the_loop_has_the_agents_of_the_thesis_and_the_workflows_that_they_run() -> None:
    app, _, _ = load_application(str(TUTORIAL / "loop.py"))
    assert [agent.template for agent in app.agents] == ["tracker", "checker", "planner", "executor"]
    assert {flow.name for flow in app.workflows} == {"mnist-wf", "serve", "detector", "training"}
    assert app.workflow("serve").serving == sf.Serving(record=1)
