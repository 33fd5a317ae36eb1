"""How many instances a service has, and what decides it."""

from __future__ import annotations

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
