"""Three drifts in a row on MNIST, each followed by a promotion that is real: in the long form, for it takes minutes."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests.integration.tutorial_steps import DATA
from tests.science.drifts_in_a_row import KINDS, in_a_row
from tests.science.test_promotion_of_models import LONG

pytestmark = [
    pytest.mark.science,
    pytest.mark.skipif(not LONG, reason="SCANFLOW_SCIENCE is not long"),
    pytest.mark.skipif(not (DATA / "mnist_c_2k.npz").is_file(), reason="MNIST-C is not at hand"),
    pytest.mark.skipif(find_spec("tensorflow") is None, reason="tensorflow is not installed"),
    pytest.mark.filterwarnings("default"),
    pytest.mark.timeout(1800),
]


def test_each_of_three_drifts_is_followed_by_a_promotion_that_is_real() -> None:
    steps = list(in_a_row(DATA, 0))
    assert [(step.drift, step.verdict) for step in steps] == [(kind, "promote") for kind in KINDS]
    assert all(step.after > step.before + 0.05 for step in steps), steps
    assert all(step.elsewhere > -0.03 for step in steps), steps
