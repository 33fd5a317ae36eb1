"""Agents of one application, of which one crashes and one never comes back: the others do not notice."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import scanflow as sf
from scanflow.app.application_files import dump_document
from scanflow.backends.agent_hosting import HostedAgent
from scanflow.backends.local.agent_processes import LocalAgents
from tests.waiting import wait_until

pytestmark = pytest.mark.processes

DOES = {
    "well": "def tick():\n    with open(__file__ + '.fired', 'a') as file:\n        file.write('.')",
    "crashes": "def tick():\n    os.kill(os.getpid(), signal.SIGSEGV)",
    "hangs": "async def tick():\n    while True:\n        pass",
}
SENSOR = (
    "import os, signal\nimport scanflow as sf\nfrom scanflow.agent import sensor\n\n@sensor(sf.every(seconds=0.5))\n"
)


class Hosting:
    def __init__(self, home: Path) -> None:
        self.home = home
        for name, does in DOES.items():
            (home.parent / f"{name}.py").write_text(SENSOR + does)
        agents = [sf.Agent(name=name, modules=[f"{name}.py"]) for name in DOES]
        app = sf.Application(name="shop", team="red", app_dir=str(home.parent), agents=agents)
        self.document = dump_document(app)
        self.backend = LocalAgents(home, ended=lambda: None, grace_s=0.5)

    def start(self, name: str) -> None:
        environment = {key: value for key, value in os.environ.items() if key in {"PATH", "PYTHONPATH"}}
        wanted = HostedAgent("shop", "red", name, document=self.document, version="1", environment=environment)
        self.backend.start(wanted)

    @property
    def fired(self) -> int:
        """How often the agent that is well has fired."""
        file = self.home.parent / "well.py.fired"
        return file.stat().st_size if file.exists() else 0


@pytest.fixture
def hosting(tmp_path: Path) -> Iterator[Hosting]:
    hosting = Hosting(tmp_path / "home")
    yield hosting
    for name in DOES:
        hosting.backend.stop("shop", "red", name)
    wait_until(lambda: hosting.backend.agents() == [], "all have ended, also the one that does not listen")


def test_what_becomes_of_one_is_nothing_to_the_others(hosting: Hosting) -> None:
    hosting.start("well")
    wait_until(lambda: hosting.fired >= 2, "one works")
    pid = hosting.backend.show("shop", "red", "well").pid
    hosting.start("crashes")
    hosting.start("hangs")

    def have_begun() -> bool:
        crashes, hangs = (hosting.backend.show("shop", "red", name) for name in ("crashes", "hangs"))
        return not crashes.alive and hangs.pid is not None and _cpu_ticks(hangs.pid) > 300

    wait_until(have_begun, "one has crashed, and one has worked for seconds on a firing that never ends")
    before = hosting.fired
    wait_until(lambda: hosting.fired >= before + 4, "the first one goes on")
    assert hosting.backend.show("shop", "red", "well").pid == pid


def _cpu_ticks(pid: int) -> int:
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(words[11]) + int(words[12])
