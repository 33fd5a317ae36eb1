"""The application with a champion that is served."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.agents.templates.fakes import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    made.version()
    made.tracker.set_model_alias("mnist_cnn", "champion", 1)
    made.control_plane.serves("models:/mnist_cnn/1")
    return made
