"""The Dockerfiles that ship: pinned, locked, and without rights."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scanflow.installation import DISTRIBUTION, IMAGE_WHEELS

CHECKOUT = Path(__file__).parents[3]
FOLDER = CHECKOUT / "deploy" / "images"
NAMES = ("agent", "base", "server", "tracker")


def lines(name: str) -> list[str]:
    text = (FOLDER / name / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def test_each_has_its_folder() -> None:
    assert sorted(path.name for path in FOLDER.iterdir()) == list(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_an_image_runs_as_a_user_by_number_and_says_what_runs(name: str) -> None:
    assert [line for line in lines(name) if line.startswith("USER")][-1] == "USER 10001:10001"
    assert lines(name)[-1].startswith("CMD [")


@pytest.mark.parametrize("name", NAMES)
def test_an_image_is_built_on_what_an_argument_names(name: str) -> None:
    argument, base = lines(name)[:2]
    pattern = {"base": r"ARG PYTHON_IMAGE=\S+@sha256:[0-9a-f]{64}"}.get(name, "ARG BASE_IMAGE=scanflow/base:latest")
    assert re.fullmatch(pattern, argument)
    assert base == f"FROM ${{{argument.removeprefix('ARG ').partition('=')[0]}}}"


@pytest.mark.parametrize("name", NAMES)
def test_what_is_installed_is_locked_with_hashes(name: str) -> None:
    for line in lines(name):
        if "pip install" in line:
            assert "--require-hashes" in line or "--no-index" in line
    copied = re.findall(r"requirements/(image-\w+\.txt) ", "\n".join(lines(name)))
    assert copied
    for lock in copied:
        text = (CHECKOUT / "requirements" / lock).read_text(encoding="utf-8")
        pins = re.findall(r"^[a-z0-9][^ ]*==[^ ]+.*$", text, re.MULTILINE)
        assert len(pins) > 50
        assert len(re.findall(r"^    --hash=sha256:", text, re.MULTILINE)) >= len(pins)


def test_a_copy_in_an_image_is_known_by_where_it_was_installed_from() -> None:
    (copy,), (install,) = ([line for line in lines("base") if word in line] for word in ("COPY dist/", "/*.whl"))
    assert copy == f"COPY dist/{DISTRIBUTION.replace('-', '_')}-*.whl {IMAGE_WHEELS}/"
    assert install.endswith(f" {IMAGE_WHEELS}/*.whl")


def test_the_context_is_the_wheel_and_the_locks() -> None:
    lines = [line for line in (CHECKOUT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    assert lines == ["*", "!dist/*.whl", "!requirements/image-*.txt"]
