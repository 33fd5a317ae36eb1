"""How many instances a service has, and what decides it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import scanflow as sf
from scanflow.errors import InvalidError
from tests.unit.app.app_builders import message


@given(st.floats(1e-6, 1e9))
def test_by_default_it_is_left_alone_within_a_tenth_of_the_target(target: float) -> None:
    scaling = sf.Scaling(metric="rps", target=target, max=3)
    assert (scaling.down_threshold, scaling.up_threshold) == pytest.approx((0.9 * target, 1.1 * target))


@given(st.floats(1e-3, 1e6), st.floats(1e-3, 1e6))
def test_thresholds_that_would_never_rest_are_refused_with_one_that_would(down: float, up: float) -> None:
    if down < up:
        assert sf.Scaling(metric="rps", target=up, down=down, up=up).down_threshold == down
    else:
        with pytest.raises(InvalidError, match=r"instances would oscillate. Write down=.* or less") as error:
            sf.Scaling(metric="rps", target=up, down=down, up=up)
        advised = float(message(error).rpartition("down=")[2].split()[0])
        assert sf.Scaling(metric="rps", target=up, down=advised, up=up).down == advised


@pytest.mark.parametrize("metric", ["gpu", "gpu_memory"])
def test_a_share_of_gpus_that_is_never_reached_adds_nothing_and_is_refused(metric: Any) -> None:
    assert sf.Scaling(metric=metric, target=0.9).reads_gpus
    for target, up in ((70, None), (0.95, None), (0.7, 1.0)):
        with pytest.raises(InvalidError, match=f"{metric!r} is a share, which is never above 1. Write target=0.7."):
            sf.Scaling(metric=metric, target=target, up=up)
    assert not sf.Scaling(metric="cpu", target=2).reads_gpus
