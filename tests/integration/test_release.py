"""What is published: its files are the same whoever builds them, hold no more than the commit, and describe it."""

from __future__ import annotations

import os
import re
import tarfile
import zipfile
from pathlib import Path

import pytest
from packaging.metadata import Metadata

from tests import release

EPOCH = 1_700_000_000

slow = pytest.mark.slow
pytestmark = pytest.mark.timeout(900)


def export_tree(folder: Path, *, age_s: int, mode: int) -> Path:
    """Write the commit's files into a folder, as if at another time and by a user with another umask."""
    release.export_commit(folder)
    for path in folder.rglob("*.py"):
        os.utime(path, (EPOCH - age_s, EPOCH - age_s))
        path.chmod(path.stat().st_mode & 0o111 or mode)
        path.chmod(mode)
    return folder


@slow
def test_two_builds_at_different_times_and_places_are_the_same_bytes(tmp_path: Path) -> None:
    contents = []
    for name, age_s, mode in (("here", 0, 0o644), ("elsewhere/deeper", 86_400, 0o600)):
        tree = export_tree(tmp_path / name, age_s=age_s, mode=mode)
        built = release.build_distributions(tree, tmp_path / f"{tree.name}-dist", epoch=EPOCH)
        contents.append([file.read_bytes() for file in built])
    assert contents[0] == contents[1]
    other = release.build(tmp_path / "here", tmp_path / "later", "sdist", epoch=EPOCH + 86_400)
    assert other.read_bytes() != contents[0][0], "the time of the build is not looked at"


@slow
def test_the_wheel_of_the_sdist_is_the_wheel_of_the_tree_and_has_all_its_modules(tmp_path: Path) -> None:
    tree = export_tree(tmp_path / "tree", age_s=0, mode=0o644)
    _, wheel = release.build_distributions(tree, tmp_path / "dist", epoch=EPOCH)
    assert release.build(tree, tmp_path / "direct", "wheel", epoch=EPOCH).read_bytes() == wheel.read_bytes()
    places = {"scanflow": "", "agents": "", "client": "", "server": ""}
    places |= {"project_templates": "scanflow_client/", "tutorials/mnist": "scanflow_client/"}
    modules = {
        place + re.sub(r"^(agents|client|server)/", "", str(path.relative_to(tree)))
        for top, place in places.items()
        for path in (tree / top).rglob("*.py")
    }
    with zipfile.ZipFile(wheel) as archive:
        assert {name for name in archive.namelist() if name.endswith(".py")} == modules


@slow
def test_the_sdist_has_the_tests_and_nothing_that_is_not_in_the_commit(tmp_path: Path) -> None:
    tree = export_tree(tmp_path / "tree", age_s=0, mode=0o644)
    sdist = release.build(tree, tmp_path / "dist", "sdist", epoch=EPOCH)
    assert release.list_unexpected(sdist, release.list_commit_files()) == []
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"README.md", "LICENSE", "pyproject.toml", "Makefile", "tests/conftest.py", "requirements/dev.txt"} <= names
    (tree / "scanflow" / "forgotten.py").write_text("")
    (tree / "scanflow" / "ignored.pyc").write_text("")
    changed = release.build(tree, tmp_path / "changed", "sdist", epoch=EPOCH)
    assert release.list_unexpected(changed, release.list_commit_files()) == ["scanflow/forgotten.py"]


@slow
def test_the_metadata_is_valid_and_its_description_needs_no_other_file(tmp_path: Path) -> None:
    wheel = release.build(release.CHECKOUT, tmp_path, "wheel", epoch=EPOCH)
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        about = Metadata.from_email(archive.read(name), validate=True)
    assert (about.license_expression, about.license_files) == ("Apache-2.0", ["LICENSE"])
    assert about.description_content_type == "text/markdown"
    assert re.findall(r"\]\((?!https?://)", about.description or "") == []
    assert "scanflow run app.py" in (about.description or "")
    prefixes = ("Intended Audience", "Operating System", "Programming Language :: Python :: 3.13", "Topic", "Typing")
    assert all(any(entry.startswith(prefix) for entry in about.classifiers or ()) for prefix in prefixes)
    assert not any(entry.startswith("License") for entry in about.classifiers or ())


@pytest.mark.parametrize(
    ("tag", "problem"),
    [("v1.2.0", None), ("1.2.0", "is not the version"), ("v1.2.1", "is not the version"), ("v1.3.0", "no entries")],
)
def test_a_tag_is_released_only_as_the_version_and_with_its_changelog(tag: str, problem: str | None) -> None:
    changelog = (
        "# Changelog\n\n## [Unreleased]\n\n- Later.\n\n## [1.2.0] - 2026-01-31\n\n- First.\n\n## [1.1.0]\n\n- Old.\n"
    )
    version = "1.3.0" if tag == "v1.3.0" else "1.2.0"
    answer = release.find_tag_problem(tag, version, changelog)
    assert (answer is None) if problem is None else (problem in (answer or ""))
    assert release.extract_notes(changelog, "1.2.0") == "- First."


def test_the_version_is_the_same_wherever_it_stands() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", release.read_version())
