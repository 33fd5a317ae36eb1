"""The contract of knowledge bases: subclass the suite and give it the fixture ``knowledge``.

Each test has a team of its own, and models with random names, so a knowledge base may live longer than one test.
"""

from __future__ import annotations

import math
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from scanflow.app.application import Application
from scanflow.errors import InvalidError, NotFoundError, UnsupportedError
from scanflow.knowledge.knowledge_port import KnowledgeBase
from scanflow.testing.models import APP, ODD_NAMES, ModelsContract, read_folder, write_folder

__all__ = ["KnowledgeBaseContract"]

FOUND: tuple[tuple[str, str], ...] = (
    ("", "abc"),
    ("  ", "abc"),
    ("tags.stage = 'train'", "ab"),
    ('tag.stage = "train"', "ab"),
    ("tags.stage != 'train'", "c"),
    ("tags.stage='train' AND metrics.accuracy>0.9", "b"),
    ("metrics.accuracy >= .9 and metrics.accuracy < 1", "b"),
    ("metrics.accuracy <= 0.5", "a"),
    ("metrics.accuracy = 0.5", "a"),
    ("metric.accuracy != 5e-1", "b"),
    ("metrics.loss > -1.5", "b"),
    ("metrics.loss = -2", "a"),
    ("params.depth = '3'", "a"),
    ("params.depth != '3'", "bc"),
    ("params.`learning rate` = '0.1'", "a"),
    ("params.learning.rate:2 = 'x'", "b"),
    ('tags.note = "it\'s"', "a"),
    ("tags.note = 'a \"b\" c'", "b"),
    ("tags.note = 'größer 数据'", "c"),
    ("tags.note != 'größer 数据'", "ab"),
    ("tags.missing != 'x'", ""),
    ("tags.stage = 'TRAIN'", ""),
    ("tags.stage = 'train and metrics.accuracy > 0.9'", ""),
    ("tags.stage = 'train' and tags.stage = 'serve'", ""),
    ("tags.stage = '%'", ""),
)
"""The runs among a, b and c that each filter selects."""

UNSUPPORTED = (
    "tags.stage='train'AND metrics.accuracy>0.9",
    "params.depth = 3",
    "params.depth > '3'",
    "metrics.accuracy = '0.5'",
    "metrics.accuracy > 1e999",
    "metrics.accuracy > nan",
    "tags.stage like 'tr%'",
    "tags.stage = 'train' or tags.stage = 'serve'",
    "attributes.status = 'FINISHED'",
    "stage = 'train'",
    "tags.stage",
    "tags.stage = train",
    "tags.stage = 'train",
    "tags.stage = 'train' and",
    "and tags.stage = 'train'",
    "(tags.stage = 'train')",
    "tags.stage = 'train'; drop table runs",
)

REFUSED: tuple[tuple[dict[str, Any], str], ...] = (
    ({"metrics": {"loss": math.nan}}, "metric 'loss' is nan"),
    ({"metrics": {"loss": math.inf}}, "metric 'loss' is inf"),
    ({"metrics": {"loss": "high"}}, "a metric is a number"),
    ({"params": {"a=b": 1}}, "parameter cannot be called 'a=b'"),
    ({"params": {"../a": 1}}, "would be another name"),
    ({"params": {"": 1}}, "cannot be called"),
    ({"params": {"long": "x" * 6001}}, "6001 characters long"),
    ({"tags": {"long": "x" * 5001}}, "5001 characters long"),
    ({"tags": {"stage": 1}}, "a tag's value is text"),
    ({"tags": {"scanflow.kb.writing": "1"}}, "scanflow's own"),
    ({"tags": {"mlflow.parentRunId": "x"}}, "Write parent="),
    ({"name": ""}, "A run cannot be called ''"),
    ({"started_at": datetime(2026, 1, 1)}, "no time zone"),  # noqa: DTZ001 - that it has none is the point
    (
        {"started_at": datetime(2026, 1, 2, tzinfo=UTC), "ended_at": datetime(2026, 1, 1, tzinfo=UTC)},
        "before it started",
    ),
)


class KnowledgeBaseContract(ModelsContract):
    """The complete contract of :class:`~scanflow.knowledge.knowledge_port.KnowledgeBase`, as tests."""

    # Environments.

    def test_preparing_twice_gives_the_same_variables(self, knowledge: KnowledgeBase, team: str) -> None:
        assert knowledge.prepare(APP, team) == knowledge.prepare(APP, team)
        with pytest.raises(InvalidError, match="Write 'my-app' instead"):
            knowledge.prepare("My App", team)
        with pytest.raises(InvalidError, match="team"):
            knowledge.prepare(APP, "")

    def test_two_applications_cannot_share_an_environment(self, knowledge: KnowledgeBase, team: str) -> None:
        knowledge.prepare("a", f"b-{team}")
        with pytest.raises(InvalidError, match="Rename one"):
            knowledge.prepare("a-b", team)
        with pytest.raises(InvalidError, match="Rename one"):
            knowledge.log_run("a-b", team)
        with pytest.raises(InvalidError, match="Rename one"):
            knowledge.save_application(Application(name="a-b", team=team))
        assert knowledge.search_runs("a-b", team) == []

    # Applications.

    def test_every_save_of_an_application_is_kept(self, knowledge: KnowledgeBase, team: str) -> None:
        with pytest.raises(NotFoundError, match=r"never saved here\. Save it first"):
            knowledge.get_application(APP, team)
        folders = ["zweite Fassung ✓", "b", "c"]
        saved = [knowledge.save_application(Application(name=APP, team=team, app_dir=folder)) for folder in folders]
        loaded = [knowledge.get_application(APP, team, version=save.version).app_dir for save in saved]
        assert loaded == folders
        assert knowledge.get_application(APP, team) == Application(name=APP, team=team, app_dir="c"), "the newest"
        assert {(save.app, save.team) for save in saved} == {(APP, team)}
        with pytest.raises(NotFoundError, match="no version 'nonesuch'"):
            knowledge.get_application(APP, team, version="nonesuch")

    # Artifacts.

    def test_what_was_saved_comes_back_as_it_was(self, knowledge: KnowledgeBase, team: str, tmp_path: Path) -> None:
        source = write_folder(tmp_path / "in", {name: f"{name}\n".encode() * 3 for name in ODD_NAMES} | {"empty": b""})
        saved = knowledge.save_artifacts(APP, team, "data: 'Läufe' 100% #1/2", source)
        target = tmp_path / "not yet" / "there"
        assert knowledge.fetch_artifacts(APP, team, "data: 'Läufe' 100% #1/2", target) == target
        assert read_folder(target) == read_folder(source)
        assert saved.uri == f"runs:/{saved.version}/files"
        knowledge.save_artifacts(APP, team, "one", source / "empty")
        knowledge.fetch_artifacts(APP, team, "one", tmp_path / "out")
        assert read_folder(tmp_path / "out") == {"empty": b""}, "a file comes back in a folder"

    def test_the_newest_or_named_version_is_fetched(self, knowledge: KnowledgeBase, team: str, tmp_path: Path) -> None:
        first = knowledge.save_artifacts(APP, team, "data", write_folder(tmp_path / "1", {"old": b"1"}))
        knowledge.save_artifacts(APP, team, "other", write_folder(tmp_path / "2", {"other": b"2"}))
        knowledge.save_artifacts(APP, team, "data", write_folder(tmp_path / "3", {"new": b"3"}))
        knowledge.fetch_artifacts(APP, team, "data", tmp_path / "newest")
        knowledge.fetch_artifacts(APP, team, "data", tmp_path / "first", version=first.version)
        assert read_folder(tmp_path / "newest") == {"new": b"3"}
        assert read_folder(tmp_path / "first") == {"old": b"1"}
        with pytest.raises(NotFoundError, match="Did you mean 'data'"):
            knowledge.fetch_artifacts(APP, team, "dta", tmp_path / "out")
        with pytest.raises(NotFoundError, match="no version 'nonesuch'"):
            knowledge.fetch_artifacts(APP, team, "data", tmp_path / "out", version="nonesuch")
        assert not (tmp_path / "out").exists()

    def test_what_cannot_be_saved_leaves_nothing(self, knowledge: KnowledgeBase, team: str, tmp_path: Path) -> None:
        linked = write_folder(tmp_path / "linked", {"x": b"1"})
        (linked / "nowhere").symlink_to(tmp_path / "nothing")
        cyclic = write_folder(tmp_path / "cyclic", {"x": b"1"})
        (cyclic / "loop").symlink_to(cyclic)
        odd = write_folder(tmp_path / "odd", {"100% sure?#1": b"1"})
        bare = tmp_path / "bare"
        bare.mkdir()
        refused = [(linked, "link to nothing"), (cyclic, "link to a folder"), (odd, "cannot carry"), (bare, "no file")]
        for source, why in refused:
            with pytest.raises(InvalidError, match=why):
                knowledge.save_artifacts(APP, team, "data", source)
            with pytest.raises(InvalidError, match=why):
                knowledge.log_run(APP, team, artifacts=source)
        with pytest.raises(NotFoundError, match="Did you mean 'linked'"):
            knowledge.save_artifacts(APP, team, "data", tmp_path / "linkd")
        with pytest.raises(NotFoundError):
            knowledge.fetch_artifacts(APP, team, "data", tmp_path / "out")
        assert knowledge.search_runs(APP, team) == []

    def test_a_save_is_a_copy_and_a_fetch_overwrites_nothing(
        self, knowledge: KnowledgeBase, team: str, tmp_path: Path
    ) -> None:
        source = write_folder(tmp_path / "in", {"x": b"before"})
        (source / "weights").symlink_to(write_folder(tmp_path / "blobs", {"abc": b"data"}) / "abc")
        knowledge.save_artifacts(APP, team, "data", source)
        (source / "x").write_bytes(b"after")
        knowledge.fetch_artifacts(APP, team, "data", tmp_path / "out")
        assert not (tmp_path / "out" / "weights").is_symlink()
        (tmp_path / "out" / "x").write_bytes(b"spoilt")
        full = write_folder(tmp_path / "full", {"mine": b"!"})
        for target in (full, full / "mine"):
            with pytest.raises(InvalidError, match="nothing is overwritten"):
                knowledge.fetch_artifacts(APP, team, "data", target)
        assert read_folder(full) == {"mine": b"!"}
        empty = tmp_path / "empty"
        empty.mkdir()
        knowledge.fetch_artifacts(APP, team, "data", empty)
        assert read_folder(empty) == {"x": b"before", "weights": b"data"}

    # Runs.

    def test_a_run_comes_back_as_it_was_logged(self, knowledge: KnowledgeBase, team: str, tmp_path: Path) -> None:
        began = datetime(2026, 3, 1, 12, 30, 15, 123_000, tzinfo=UTC)
        run = knowledge.log_run(
            APP,
            team,
            name="Lauf №1",
            params={"depth": 3, "rate": 0.1, "name": "größer", "none": None, "a key/with.all:of-it": "", "on": True},
            metrics={"accuracy": 0.97, "loss": -1e-300, "big": 1.5e300, "zero": 0},
            tags={"stage": "train", "quote": 'it\'s "quoted"\nand `more`'},
            artifacts=write_folder(tmp_path / "in", {"plots/läufe.png": b"png"}),
            status="failed",
            started_at=began,
            ended_at=began + timedelta(seconds=90),
        )
        assert (run.name, run.status, run.environment) == ("Lauf №1", "failed", f"scanflow-{APP}-{team}")
        assert run.params == {
            "depth": "3", "rate": "0.1", "name": "größer", "none": "None", "a key/with.all:of-it": "", "on": "True"
        }  # fmt: skip
        assert run.metrics == {"accuracy": 0.97, "loss": -1e-300, "big": 1.5e300, "zero": 0.0}
        assert run.tags == {"stage": "train", "quote": 'it\'s "quoted"\nand `more`'}
        assert (run.started_at, run.ended_at) == (began, began + timedelta(seconds=90))
        assert run.parent is None
        assert knowledge.get_run(run.run_id) == run
        assert knowledge.search_runs(APP, team) == [run]
        knowledge.fetch_run_artifacts(run.run_id, tmp_path / "out")
        assert read_folder(tmp_path / "out") == {"plots/läufe.png": b"png"}

    def test_a_run_may_say_next_to_nothing(self, knowledge: KnowledgeBase, team: str, tmp_path: Path) -> None:
        run = knowledge.log_run(APP, team)
        assert run.name
        assert run.status == "finished"
        assert (run.params, run.metrics, run.tags) == ({}, {}, {})
        with pytest.raises(NotFoundError, match="has no artifacts"):
            knowledge.fetch_run_artifacts(run.run_id, tmp_path / "out")
        assert not (tmp_path / "out").exists()

    def test_many_params_and_metrics_are_all_kept(self, knowledge: KnowledgeBase, team: str) -> None:
        params = {f"p{number}": "ü" * 6000 for number in range(60)}
        metrics = {f"m{number}": float(number) for number in range(1100)}
        run = knowledge.log_run(APP, team, params=params, metrics=metrics)
        assert run.params == params
        assert run.metrics == metrics

    def test_part_of_a_runs_artifacts_can_be_fetched(self, knowledge: KnowledgeBase, team: str, tmp_path: Path) -> None:
        source = write_folder(tmp_path / "in", {"a/b/c": b"1", "a/d": b"2", "e": b"3"})
        run = knowledge.log_run(APP, team, artifacts=source)
        for path, expected in {"a": {"b/c": b"1", "d": b"2"}, "a/b/": {"c": b"1"}, "a/d": {"d": b"2"}}.items():
            target = tmp_path / uuid.uuid4().hex
            knowledge.fetch_run_artifacts(run.run_id, target, path=path)
            assert read_folder(target) == expected
        with pytest.raises(NotFoundError, match="no artifact 'a/x'"):
            knowledge.fetch_run_artifacts(run.run_id, tmp_path / "out", path="a/x")
        with pytest.raises(InvalidError, match="leads out"):
            knowledge.fetch_run_artifacts(run.run_id, tmp_path / "out", path="../x")

    def test_a_run_has_a_parent(self, knowledge: KnowledgeBase, team: str) -> None:
        parent = knowledge.log_run(APP, team, name="workflow")
        child = knowledge.log_run(APP, team, name="step", parent=parent.run_id)
        assert child.parent == parent.run_id
        assert child.tags == {}
        with pytest.raises(NotFoundError, match="no run 'nonesuch'"):
            knowledge.log_run(APP, team, parent="nonesuch")
        assert len(knowledge.search_runs(APP, team)) == 2

    def test_a_run_that_cannot_be_kept_whole_is_not_kept(self, knowledge: KnowledgeBase, team: str) -> None:
        for filter_text, why in REFUSED:
            with pytest.raises(InvalidError, match=why):
                knowledge.log_run(APP, team, **filter_text)
        assert knowledge.search_runs(APP, team) == []

    def test_an_unknown_run_says_what_to_do(self, knowledge: KnowledgeBase, tmp_path: Path) -> None:
        for run_id in ("nonesuch", "0" * 32, "a b/..", "é"):
            with pytest.raises(NotFoundError, match="Search the environment's runs"):
                knowledge.get_run(run_id)
            with pytest.raises(NotFoundError, match="Search the environment's runs"):
                knowledge.fetch_run_artifacts(run_id, tmp_path / "out")

    # Searches.

    def test_runs_are_found_newest_first_and_up_to_a_limit(self, knowledge: KnowledgeBase, team: str) -> None:
        noon = datetime(2026, 3, 1, 12, tzinfo=UTC)
        for minute in (1, 3, 0, 2):
            began = noon + timedelta(minutes=minute)
            knowledge.log_run(APP, team, name=f"m{minute}", started_at=began, ended_at=noon + timedelta(hours=1))
        assert [run.name for run in knowledge.search_runs(APP, team)] == ["m3", "m2", "m1", "m0"]
        assert [run.name for run in knowledge.search_runs(APP, team, limit=2)] == ["m3", "m2"]
        with pytest.raises(InvalidError, match="at least 1"):
            knowledge.search_runs(APP, team, limit=0)

    def test_neither_other_environments_runs_nor_what_was_saved_are_found(
        self, knowledge: KnowledgeBase, team: str, tmp_path: Path
    ) -> None:
        assert knowledge.search_runs(APP, team) == []
        knowledge.log_run("other", team)
        saved = knowledge.save_artifacts(APP, team, "data", write_folder(tmp_path / "in", {"x": b"1"}))
        with pytest.raises(NotFoundError, match="no run"):
            knowledge.get_run(saved.version)
        knowledge.save_application(Application(name=APP, team=team))
        knowledge.register_model(f"model-{team}", tmp_path / "in", app=APP, team=team)
        assert knowledge.search_runs(APP, team) == []

    def test_a_filter_selects_runs(self, knowledge: KnowledgeBase, team: str) -> None:
        for text in UNSUPPORTED:
            with pytest.raises(UnsupportedError, match="Write clauses such as"):
                knowledge.search_runs(APP, team, text)
        knowledge.log_run(
            APP,
            team,
            name="a",
            tags={"stage": "train", "note": "it's"},
            metrics={"accuracy": 0.5, "loss": -2},
            params={"depth": 3, "learning rate": 0.1},
        )
        knowledge.log_run(
            APP,
            team,
            name="b",
            tags={"stage": "train", "note": 'a "b" c'},
            metrics={"accuracy": 0.95, "loss": -1},
            params={"depth": 4, "learning.rate:2": "x"},
        )
        knowledge.log_run(APP, team, name="c", tags={"stage": "serve", "note": "größer 数据"}, params={"depth": 33})
        for text, expected in FOUND:
            assert sorted(run.name for run in knowledge.search_runs(APP, team, text)) == sorted(expected), text
