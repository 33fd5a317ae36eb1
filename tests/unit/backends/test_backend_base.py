"""What a backend does not have it says, by its name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import scanflow as sf
from scanflow.backends.backend_base import BackendBase
from scanflow.backends.backend_port import Backend
from scanflow.deployer.embedded import open_backend
from scanflow.errors import UnsupportedError
from scanflow.settings import Settings


class Bare(BackendBase):
    name = "bare"


GETTERS: dict[str, Callable[[Backend], Any]] = {
    "batch": lambda backend: backend.batch(),
    "online": lambda backend: backend.online(),
    "mpi": lambda backend: backend.mpi(),
    "agents": lambda backend: backend.agents(ended=lambda: None),
    "lease": lambda backend: backend.lease("a", holder="b", duration_s=1.0),
    "environments": lambda backend: backend.environments(),
    "program": lambda backend: backend.program([], {}),
}


@pytest.mark.parametrize("get", GETTERS.values(), ids=GETTERS)
def test_a_feature_that_a_backend_does_not_have_is_refused_by_its_name(get: Callable[[Backend], Any]) -> None:
    with pytest.raises(UnsupportedError, match=r"^The backend 'bare' \w+ .*\."):
        get(Bare())


def test_a_backend_has_no_objects_tracker_or_findings_unless_it_says_so() -> None:
    node = sf.Executor(name="a", mainfile="a.py")
    app = sf.Application(name="shop", workflows=[sf.Workflow(name="w", nodes=[node])])
    backend = Bare()
    assert (backend.objects(app, app.workflows[0]), backend.tracker(app), backend.doctor()) == ([], None, [])


@pytest.mark.parametrize(
    ("name", "refused"),
    [("local", ["lease", "environments", "program"]), ("memory", ["mpi", "environments", "program"])],
)
def test_the_backends_here_are_named_where_they_refuse(home: Path, name: str, refused: list[str]) -> None:
    backend = open_backend(Settings(home=home, backend=name))
    for feature in refused:
        with pytest.raises(UnsupportedError, match=f"^The backend '{name}' "):
            GETTERS[feature](backend)
