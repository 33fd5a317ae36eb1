"""Paths in a home's records: relative to it, and found again when the home is elsewhere."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from scanflow.files.home_paths import resolve_home_path, shorten_home_path

PARTS = st.lists(st.text("abc-.0 é", min_size=1, max_size=6).filter(lambda part: part not in {".", ".."}), max_size=4)


@given(PARTS, PARTS, PARTS)
def test_what_lies_in_a_home_is_found_in_it_wherever_the_home_is(
    home: list[str], other: list[str], below: list[str]
) -> None:
    recorded = shorten_home_path(Path("/h", *home), Path("/h", *home, *below))
    assert not Path(recorded).is_absolute()
    assert resolve_home_path(Path("/o", *other), recorded) == Path("/o", *other, *below)


def test_an_absolute_path_of_an_earlier_version_is_found_where_the_home_is_now(tmp_path: Path) -> None:
    before, now = tmp_path / "environments" / "before", tmp_path / "now"
    run = Path("environments", "scanflow-shop-data", "runs", "calm-fox-1")
    (now / run).mkdir(parents=True)
    assert resolve_home_path(now, str(before / run)) == now / run
    (before / run).mkdir(parents=True)
    assert resolve_home_path(now, str(before / run)) == now / run, "a copy of a home is another home"
    assert resolve_home_path(before, str(before / run)) == before / run


def test_what_lies_elsewhere_stays_there(tmp_path: Path) -> None:
    elsewhere = tmp_path / "data" / "models" / "mine"
    assert shorten_home_path(tmp_path / "home", elsewhere) == str(elsewhere)
    assert resolve_home_path(tmp_path / "home", str(elsewhere)) == elsewhere
