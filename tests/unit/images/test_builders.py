"""Builders, as the programs that are found on the path."""

from __future__ import annotations

from pathlib import Path

import pytest

from scanflow.errors import InvalidError, MissingExtraError, UsageError
from scanflow.images.builders import Program, build_command, get_builder, push_command


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all of PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def install(path: Path, name: str, script: str = "") -> None:
    (path / name).write_text(f"#!/bin/sh\n{script}\n")
    (path / name).chmod(0o755)


def test_the_first_builder_that_is_installed_is_used_or_the_one_that_is_named(path: Path) -> None:
    install(path, "docker")
    assert get_builder().name == "docker"
    install(path, "buildah")
    assert get_builder().name == "buildah"
    assert get_builder("docker").name == "docker"


def test_without_a_builder_the_package_to_install_is_named(path: Path) -> None:
    with pytest.raises(MissingExtraError, match=r"None of buildah, podman and docker is installed.*install buildah"):
        get_builder()
    with pytest.raises(MissingExtraError, match=r"docker is not installed.*install docker\.io"):
        get_builder("docker")
    with pytest.raises(InvalidError, match="Did you mean 'buildah'"):
        get_builder("builda")
    install(path, "podman")
    with pytest.raises(InvalidError, match="cannot be read"):
        get_builder(options="-v '/etc")


@pytest.mark.parametrize(
    ("program", "build", "push"),
    [
        (
            "buildah",
            "buildah build --layers --tls-verify=false --network host -f /c/Dockerfile -t r:5/a:1 /c",
            "buildah push --tls-verify=false r:5/a:1",
        ),
        (
            "podman",
            "podman build --layers --tls-verify=false --network host -f /c/Dockerfile -t r:5/a:1 /c",
            "podman push --tls-verify=false r:5/a:1",
        ),
        ("docker", "docker build --network host -f /c/Dockerfile -t r:5/a:1 /c", "docker push r:5/a:1"),
    ],
)
def test_each_program_gets_the_command_that_it_knows(program: Program, build: str, push: str) -> None:
    options = ["--network", "host"]
    assert build_command(program, Path("/c"), "r:5/a:1", insecure=True, options=options) == build.split()
    assert push_command(program, "r:5/a:1", insecure=True) == push.split()
    assert "--tls-verify=false" not in push_command(program, "r:5/a:1")


def test_what_a_builder_prints_is_streamed_and_its_last_lines_are_in_the_error(path: Path) -> None:
    install(path, "buildah", 'echo "STEP 1: $1"; echo "no such package" >&2; [ "$1" = push ]')
    builder, messages = get_builder(), list[str]()
    builder.push("r:5/a:1", messages.append)
    assert messages == ["STEP 1: push", "no such package"]
    with pytest.raises(UsageError) as caught:
        builder.build(path, "r:5/a:1", messages.append)
    assert str(caught.value).splitlines() == [
        "The image 'r:5/a:1' cannot be built: `buildah build` exited with 1.",
        "  STEP 1: build",
        "  no such package",
    ]
