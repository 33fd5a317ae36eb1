"""What was noted is known for a while."""

from __future__ import annotations

from scanflow.backends.kubernetes.expiring_set import ExpiringSet


def test_what_was_noted_is_known_for_so_many_seconds() -> None:
    now = [10.0]
    recently = ExpiringSet(5.0, clock=lambda: now[0])
    recently.add("a")
    now[0] = 14.9
    recently.add("b")
    assert ("a" in recently, "b" in recently, "c" in recently) == (True, True, False)
    now[0] = 15.0
    assert ("a" in recently, "b" in recently) == (False, True)
