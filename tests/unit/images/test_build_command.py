"""``scanflow build``, with a builder that only says what it is asked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import scanflow as sf
from scanflow.application_loading import load_application
from scanflow.images.code_files import compute_digest, list_code_files
from scanflow_client.cli.command_tree import app

APP = """
import scanflow as sf

load = sf.Executor(name="load", mainfile="load.py")
train = sf.Executor(name="train", mainfile="load.py", requirements=["numpy"])
own = sf.Executor(name="own", mainfile="load.py", image="example.com/own:1")
app = sf.Application(name="shop", workflows=[
    sf.Workflow(name="training", nodes=[load, train]),
    sf.Workflow(name="report", nodes=[own]),
])
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: an application, with a builder on the path."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "buildah").write_text('#!/bin/sh\necho "$1"\n[ "$1" != "$REFUSED" ]\n')
    (programs / "buildah").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=":")
    monkeypatch.setenv("SCANFLOW_HOME", str(tmp_path / "home"))
    for name in ("SCANFLOW_KUBERNETES_REGISTRY", "SCANFLOW_KUBERNETES_IMAGE", "SCANFLOW_IMAGES_OPTIONS"):
        monkeypatch.delenv(name, raising=False)
    here = tmp_path / "app"
    here.mkdir()
    (here / "app.py").write_text(APP)
    (here / "load.py").write_text("print()\n")
    monkeypatch.chdir(here)
    return here


def test_dockerfiles_are_printed_and_nothing_is_built(folder: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["build", "--print", "--registry", "r:5"])
    assert done.exit_code == 0, done.output
    assert done.stdout.count("FROM scanflow/base:latest") == 2
    assert "# r:5/scanflow/shop:" in done.stdout
    assert compute_digest(list_code_files(folder)) in done.stdout
    assert not (tmp_path / "home" / "images").exists()


def test_images_are_built_pushed_and_listed_as_json(folder: Path) -> None:
    words = ["build", "app.py", "--push", "--registry", "r:5", "--base", "r:5/base:2", "--json"]
    first, second = (CliRunner().invoke(app, words) for _ in range(2))
    assert first.stderr.split() == ["build", "push", "build", "push"]
    assert second.stderr == ""
    document = json.loads(first.stdout)
    assert [plan["nodes"] for plan in document] == [["load"], ["train"]]
    assert [plan["state"] for plan in json.loads(second.stdout)] == ["unchanged", "unchanged"]


def test_nothing_is_needed_where_each_node_names_its_image(folder: Path) -> None:
    done = CliRunner().invoke(app, ["build", "app.py:report"])
    assert done.stdout == "No image is needed: each step and service names its own.\n"


def test_a_failed_build_has_the_builders_last_lines(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REFUSED", "push")
    done = CliRunner().invoke(app, ["build", "app.py:training", "--push", "--registry", "r:5"])
    assert "cannot be pushed: `buildah push` exited with 1." in str(done.exception)


def test_a_client_builds_what_the_command_builds(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shop = load_application("app.py")[0]
    quiet, loud = sf.Client(home=tmp_path / "other", progress=False), sf.Client(progress=True)
    (first, second) = quiet.build(shop, "training", push=True, registry="r:5")
    assert (first.state, first.pushed, second.nodes) == ("built", True, ("train",))
    assert capsys.readouterr().err == ""
    assert [record.state for record in loud.build(shop, push=True, registry="r:5")] == ["built", "built"]
    assert capsys.readouterr().err == "build\npush\nbuild\npush\n"
    assert [record.state for record in loud.build(shop, push=True, registry="r:5")] == ["unchanged", "unchanged"]
