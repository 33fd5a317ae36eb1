"""What a run becomes on Argo, to the letter: see ``tests.manifests``."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from scanflow.backends.kubernetes.kinds import Manifest
from tests.golden.batch_shapes import SHAPES
from tests.manifests import assert_manifests


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_a_run_becomes_the_workflow_that_it_always_became(shape: Callable[[], Manifest]) -> None:
    assert_manifests(f"batch-{shape.__name__.replace('_', '-')}", shape())
