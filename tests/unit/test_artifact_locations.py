"""MLflow's database in a home that is elsewhere now: the addresses of artifacts move with it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from scanflow.errors import UnavailableError
from scanflow.knowledge.artifact_locations import move_artifact_addresses

TABLES = """
CREATE TABLE experiments (experiment_id INTEGER, name TEXT, artifact_location TEXT);
CREATE TABLE experiment_tags (experiment_id INTEGER, key TEXT, value TEXT);
CREATE TABLE runs (artifact_uri TEXT);
CREATE TABLE logged_models (artifact_location TEXT);
CREATE TABLE model_versions (source TEXT, storage_location TEXT);
CREATE TABLE trace_tags (key TEXT, value TEXT);
INSERT INTO experiment_tags VALUES (7, 'scanflow.app', 'shop');
"""


def make_tracker(home: Path, artifacts: Path) -> Path:
    """Make a tracker of a home whose artifacts were in another folder; return its file."""
    path = home / "tracker" / "mlflow.db"
    path.parent.mkdir(parents=True)
    root = artifacts.as_uri()
    with closing(sqlite3.connect(path)) as database:
        database.executescript(TABLES)
        rows = [(0, "Default", f"{root}/0"), (7, "scanflow-shop-data", f"{root}/scanflow-shop-data")]
        rows += [
            (8, "own", "file:///mine"),
            (9, "near", f"{root}-2/near"),
            (10, "far", "s3://bucket/tracker/artifacts/0"),
        ]
        database.executemany("INSERT INTO experiments VALUES (?, ?, ?)", rows)
        database.execute("INSERT INTO runs VALUES (?)", (f"{root}/7/abc/artifacts",))
        database.execute("INSERT INTO logged_models VALUES (?)", (f"{root}/7/models/m-1/artifacts",))
        database.execute("INSERT INTO model_versions VALUES ('models:/m-1', ?)", (f"{root}/7/models/m-1/artifacts",))
        database.execute("INSERT INTO trace_tags VALUES ('mlflow.artifactLocation', ?)", (f"{root}/7/traces/t",))
        database.commit()
    return path


def read_addresses(path: Path) -> list[str]:
    queries = (
        "SELECT artifact_location FROM experiments ORDER BY experiment_id",
        "SELECT artifact_uri FROM runs",
        "SELECT artifact_location FROM logged_models",
        "SELECT source FROM model_versions",
        "SELECT storage_location FROM model_versions",
        "SELECT value FROM trace_tags",
    )
    with closing(sqlite3.connect(path)) as database:
        return [str(row[0]) for query in queries for row in database.execute(query)]


def list_expected(root: Path, before: Path) -> list[str]:
    own = ["file:///mine", f"{before.as_uri()}-2/near", "s3://bucket/tracker/artifacts/0"]
    files = [f"7/{name}" for name in ("abc/artifacts", "models/m-1/artifacts")]
    moved = [f"{root.as_uri()}/{name}" for name in ("0", "scanflow-shop-data")]
    rest = [f"{root.as_uri()}/{name}" for name in (*files, "models:/m-1", "7/models/m-1/artifacts", "7/traces/t")]
    rest[2] = "models:/m-1"
    return [*moved, *own, *rest]


@pytest.mark.parametrize("name", ["now", "hömé #1 100%"])
@pytest.mark.parametrize("is_copy", [False, True])
def test_addresses_in_another_home_become_this_home_s(tmp_path: Path, name: str, is_copy: bool) -> None:
    before, root = tmp_path / "before %" / "tracker" / "artifacts", tmp_path / name / "tracker" / "artifacts"
    if is_copy:
        before.mkdir(parents=True)
    path = make_tracker(tmp_path / name, before)
    root.mkdir()
    assert move_artifact_addresses(path, root)
    assert read_addresses(path) == list_expected(root, before)
    assert not move_artifact_addresses(path, root), "once is enough"


def test_a_home_reached_through_a_link_keeps_its_addresses(tmp_path: Path) -> None:
    root = tmp_path / "home" / "tracker" / "artifacts"
    path = make_tracker(tmp_path / "home", root)
    root.mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "home")
    linked = tmp_path / "link" / "tracker"
    assert not move_artifact_addresses(linked / path.name, linked / "artifacts")
    assert read_addresses(path) == list_expected(root, root)


def test_a_tracker_elsewhere_and_one_that_is_not_there_yet_are_left_alone(tmp_path: Path) -> None:
    before = tmp_path / "before" / "tracker" / "artifacts"
    path = make_tracker(tmp_path / "shared", before)
    assert not move_artifact_addresses(path, tmp_path / "home" / "tracker" / "artifacts")
    assert read_addresses(path) == list_expected(before, before)
    assert not move_artifact_addresses(tmp_path / "none" / "mlflow.db", tmp_path / "none" / "artifacts")
    (tmp_path / "empty.db").touch()
    assert not move_artifact_addresses(tmp_path / "empty.db", tmp_path / "artifacts")


def test_a_damaged_database_is_left_to_whoever_uses_it(tmp_path: Path) -> None:
    path = tmp_path / "mlflow.db"
    path.write_bytes(b"no database, and long enough to be looked at" * 10)
    assert not move_artifact_addresses(path, tmp_path / "artifacts")


def test_a_database_that_cannot_be_changed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_tracker(tmp_path / "now", tmp_path / "before" / "tracker" / "artifacts")
    monkeypatch.setattr("scanflow.knowledge.artifact_locations.TIMEOUT_S", 0.01)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(UnavailableError, match=r"mlflow\.db.*locked.*Try again"):
            move_artifact_addresses(path, path.with_name("artifacts"))
