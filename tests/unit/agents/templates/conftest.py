"""The application with a champion that is served."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.agents.templates.fakes import LoopHarness


@pytest.fixture
def harness(tmp_path: Path) -> LoopHarness:
    harness = LoopHarness(tmp_path)
    harness.version()
    harness.tracker.set_model_alias("mnist_cnn", "champion", 1)
    harness.control_plane.serves("models:/mnist_cnn/1")
    return harness
