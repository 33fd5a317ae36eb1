"""How many instances a service has, and what decides it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import scanflow as sf
from scanflow.errors import InvalidError
from tests.unit.app.making import made, message


@given(st.floats(1e-6, 1e9))
def test_by_default_it_goes_down_well_below_where_it_goes_up(target: float) -> None:
    scaling = sf.Scaling(metric="rps", target=target, max=3)
    assert scaling.down_threshold < scaling.up_threshold == target


@given(st.floats(1e-3, 1e6), st.floats(1e-3, 1e6))
def test_thresholds_that_would_never_rest_are_refused_with_one_that_would(down: float, up: float) -> None:
    if down < up:
        assert sf.Scaling(metric="rps", target=up, down=down, up=up).down_threshold == down
    else:
        with pytest.raises(InvalidError, match=r"it would never rest. Write down=.* or less") as error:
            sf.Scaling(metric="rps", target=up, down=down, up=up)
        advised = float(message(error).rpartition("down=")[2].split()[0])
        assert sf.Scaling(metric="rps", target=up, down=advised, up=up).down == advised


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"min": 3, "max": 2}, "Scaling has min=3 above max=2. Swap them, or raise max."),
        ({"min": -1}, "Scaling: min cannot be -1: it should be greater than or equal to 0."),
        ({"max": 0}, "Scaling: max cannot be 0"),
        ({"max": True}, "Scaling: max cannot be True: it should be a number."),
        ({"target": 0}, "Scaling: target cannot be 0"),
        ({"target": True}, "Scaling: target cannot be True: it should be a number."),
        ({"target": float("nan")}, "Scaling: target cannot be nan: it should be a finite number."),
        ({"target": float("inf")}, "Scaling: target cannot be inf: it should be a finite number."),
        ({"up": float("inf")}, "Scaling: up cannot be inf: it should be a finite number."),
        ({"metric": "latency"}, "Scaling: metric cannot be 'latency': it should be 'rps', 'p95', 'cpu' or 'queue'."),
        ({"polling": "0s"}, "Scaling: polling '0s' is not above zero. Write seconds, or '90s'"),
        ({"polling": None}, "Scaling: polling cannot be None. Write 90, '90s' or '1h30m'."),
        ({"cool_down": "5 minutes"}, "Scaling: cool_down '5 minutes' has the unknown unit 'minutes'."),
        ({"cooldown": 5}, "Scaling has no field 'cooldown'. Did you mean 'cool_down'?"),
    ],
)
def test_a_wrong_field_is_refused_with_what_to_write(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidError) as error:
        made(sf.Scaling, **{"metric": "rps", "target": 10, **fields})
    assert message(error).startswith(told)


def test_durations_are_held_as_seconds() -> None:
    scaling = sf.Scaling(metric="p95", target=0.2, polling="250ms", cool_down="2m")
    assert (scaling.polling, scaling.cool_down) == (0.25, 120)
