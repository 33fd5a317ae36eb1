"""A program inside a cluster: what it is made of, that it is removed, and how the demo tells of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from scanflow.backends.environments import ObjectChange
from scanflow.backends.kubernetes.hosted_program import build_program_manifests, host_program
from scanflow.backends.kubernetes.kubernetes_settings import KubernetesSettings
from scanflow.errors import InvalidError, StepFailedError
from scanflow.testing.memory_cluster import MemoryCluster
from scanflow_client.demo.demo_application import load_small_demo
from scanflow_client.demo.in_cluster import REPORT, run_in_cluster
from tests.manifests import assert_manifests

SETTINGS = KubernetesSettings(pull_secret="registry", storage_class="fast", keep_claims=True)


def test_the_objects_of_a_program() -> None:
    manifests = build_program_manifests(
        "scanflow-program-0123ab", ["python", "-m", "demo"], {"COLOUR": "red"}, SETTINGS
    )
    assert_manifests("program", *manifests)


def test_a_program_is_removed_however_it_ends() -> None:
    cluster: Any = MemoryCluster(namespaces=("default",))

    def fails() -> None:
        with host_program(cluster, SETTINGS, ["true"], {}):
            assert cluster.find("ClusterRole")[0]
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fails()
    for kind in ("ClusterRole", "ClusterRoleBinding", "Pod", "ServiceAccount"):
        assert cluster.find(kind)[0] == [], kind


class Place:
    """A backend, as far as the demo asks for it."""

    def __init__(self, *lines: str, there: str = "create") -> None:
        self.written, self.there, self.deleted = lines, there, 0

    def environments(self) -> Any:
        return self

    def plan(self, _app: Any) -> list[ObjectChange]:
        return [ObjectChange("Namespace", "scanflow-mnist-datascience", None, self.there)]  # type: ignore[arg-type]

    def delete(self, _app: Any) -> None:
        self.deleted += 1

    @contextmanager
    def program(self, _command: Sequence[str], _environment: Mapping[str, str]) -> Iterator[Any]:
        yield self

    def lines(self) -> Iterator[str]:
        yield from self.written

    def read(self, path: str) -> str:
        return f"the page at {path}"


@pytest.fixture
def play(tmp_path: Path) -> Callable[[Any], list[str]]:
    def play_program(place: Any) -> list[str]:
        messages: list[str] = []
        run_in_cluster(place, load_small_demo()[0], tmp_path / "reports" / "demo.html", messages.append)
        return messages

    return play_program


def test_the_demo_tells_what_its_pod_writes_keeps_the_report_and_cleans_up(
    play: Callable[[Any], list[str]], tmp_path: Path
) -> None:
    place = Place("one", "two", f"{REPORT}/tmp/a.html", "never told")
    lines = play(place)
    assert lines[1:3] == ["one", "two"]
    assert "never told" not in lines
    assert (tmp_path / "reports" / "demo.html").read_text() == "the page at /tmp/a.html"
    assert place.deleted == 1


def test_a_demo_without_a_report_has_failed_and_cleans_up(play: Callable[[Any], list[str]]) -> None:
    place = Place("Error: no image")
    with pytest.raises(StepFailedError, match="Its output is above"):
        play(place)
    assert place.deleted == 1


def test_an_environment_that_is_there_is_not_touched(play: Callable[[Any], list[str]]) -> None:
    place = Place(there="none")
    with pytest.raises(InvalidError, match="scanflow-mnist-datascience"):
        play(place)
    assert place.deleted == 0
