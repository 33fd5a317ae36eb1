"""What the fault tests share: plants that are taken apart whatever happens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.integration.agent_faults.plant import Plant

MakePlant = Callable[..., Plant]


@pytest.fixture
def make_plant(home: Path, tmp_path: Path) -> Iterator[MakePlant]:
    plants: list[Plant] = []

    def make(files: Mapping[str, str], **environ: str) -> Plant:
        plant = Plant(tmp_path, home, files, **environ)
        plants.append(plant)
        plant.server.start()
        return plant

    yield make
    for plant in plants:
        plant.close()
