"""``scanflow drift check``, as people and programs use it."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np

from tests.conftest import Cli


def write(path: Path, *, seed: int, shift: float = 0.0, missing: float = 0.0) -> str:
    generator = np.random.default_rng(seed)
    lines = ["age,city"]
    for _ in range(400):
        age = "" if generator.random() < missing else f"{generator.normal(40 + shift, 10):.2f}"
        lines.append(f"{age},{generator.choice(['Oslo', 'Rome'])}")
    path.write_text("\n".join(lines), encoding="utf-8")
    return path.name


def test_a_table_is_compared_drawn_and_printed_for_programs(quick_cli: Cli, tmp_path: Path) -> None:
    old, same = write(tmp_path / "old.csv", seed=1), write(tmp_path / "same.csv", seed=2)
    new = write(tmp_path / "new.csv", seed=3, shift=6, missing=0.1)
    alike = quick_cli("drift", "check", old, same, "--fail-on-drift")
    assert (alike.returncode, alike.stdout.splitlines()[0].split(":")[0]) == (0, "No drift")
    drifted = quick_cli("drift", "check", old, new, "--plot", "drift.svg")
    assert drifted.returncode == 0, drifted.stderr
    assert drifted.stdout.startswith(
        "Drifted: 400 rows against 400, p 1e-12 at the level 0.01.\n1 column of 2 drifted."
    )
    assert "age*" in drifted.stdout
    assert "city*" not in drifted.stdout
    drawn = ET.parse(tmp_path / "drift.svg").getroot()
    assert {"! age", "city"} <= {text.text for text in drawn.iter("{http://www.w3.org/2000/svg}text")}
    result = quick_cli("drift", "check", old, new, "--json", "--fail-on-drift")
    document = json.loads(result.stdout)
    assert (result.returncode, document["drifted"], document["rows"]) == (3, True, {"reference": 400, "current": 400})
    assert set(document["columns"][0]) == {"name", "test", "statistic", "p", "effect", "reference", "current"}
    assert quick_cli("drift", "check", old, new, "--min-effect", "0.9", "--fail-on-drift").returncode == 0


def write_series(path: Path, *, seed: int) -> str:
    """Write 1,000 rows in order of time, each with nine tenths of the one before, and the times."""
    values = np.random.default_rng(seed).normal(size=(1000, 2))
    for at in range(1, len(values)):
        values[at] += 0.9 * values[at - 1]
    lines = [
        f"{heat:.4f},{'on' if flow > 0 else 'off'},2024-01-01T{at // 60:02}:{at % 60:02}:00"
        for at, (heat, flow) in enumerate(values)
    ]
    path.write_text("\n".join(["heat,pump,time", *lines]), encoding="utf-8")
    return path.name


def test_a_column_that_tells_the_time_is_left_out(quick_cli: Cli, tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    for month, name in enumerate(("old.csv", "new.csv")):
        rows = [f"{(month * 400 + place) // 4},{value:.3f}" for place, value in enumerate(draw.normal(size=400))]
        (tmp_path / name).write_text("\n".join(["day,wind", *rows]))
    assert json.loads(quick_cli("drift", "check", "old.csv", "new.csv", "--json").stdout)["drifted"]
    alike = quick_cli("drift", "check", "old.csv", "new.csv", "--without", "day", "--json", "--fail-on-drift")
    document = json.loads(alike.stdout)
    assert (alike.returncode, document["drifted"]) == (0, False)
    assert document["not_compared"] == {"day": "by --without"}
    wrong = quick_cli("drift", "check", "old.csv", "new.csv", "--without", "days")
    assert (wrong.returncode, "Did you mean 'day'?" in wrong.stderr) == (2, True)
    none = quick_cli("drift", "check", "old.csv", "new.csv", "--without", "day", "--without", "wind")
    assert (none.returncode, "Leave fewer out" in none.stderr) == (2, True)


def test_rows_in_order_of_time_are_noticed_and_thinned(quick_cli: Cli, tmp_path: Path) -> None:
    old, new = write_series(tmp_path / "old.csv", seed=5), write_series(tmp_path / "new.csv", seed=6)
    noted = quick_cli("drift", "check", old, new).stdout
    assert noted.startswith("Rows depend on those before them: 1,000 say as much about ")
    assert "Ask again with --in-order.\nDrifted: 1,000 rows against 1,000" in noted
    thinned = quick_cli("drift", "check", old, new, "--in-order", "--json")
    document = json.loads(thinned.stdout)
    assert not document["drifted"]
    dependence = document["dependence"]
    assert dependence["column"] in {"heat", "pump"}, "times only follow each other"
    assert document["rows"]["current"] == -(-1000 // dependence["stride"])
    assert 30 <= dependence["effective_rows"] <= 120, "53 in theory"


def test_what_cannot_be_compared_is_refused_with_what_to_do(quick_cli: Cli, tmp_path: Path) -> None:
    old = write(tmp_path / "old.csv", seed=1)
    (tmp_path / "other.csv").write_text("height\n" + "1\n" * 20, encoding="utf-8")
    for wrong, says in (("none.csv", "no file"), ("other.csv", "lacks 'age', 'city'")):
        refused = quick_cli("drift", "check", old, wrong)
        assert refused.returncode == 2
        assert says in refused.stderr
    assert "level=0.5" in quick_cli("drift", "check", old, old, "--level", "0.5").stderr


def test_a_damaged_file_in_a_folder_of_predictions_is_named(quick_cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "recorded").mkdir()
    (tmp_path / "recorded" / "cut.npz").write_bytes(b"PK\x03\x04 cut off")
    refused = quick_cli("drift", "check", "recorded", "recorded")
    assert refused.returncode == 2
    assert "cut.npz' cannot be read" in refused.stderr


def test_segments_and_streams_are_looked_at(quick_cli: Cli, tmp_path: Path) -> None:
    old, new = write(tmp_path / "old.csv", seed=1), write(tmp_path / "new.csv", seed=3, shift=6)
    screen = quick_cli("drift", "check", old, new, "--by", "city").stdout
    assert "segment" in screen
    document = json.loads(quick_cli("drift", "check", old, new, "--by", "city", "--json").stdout)
    assert {
        (segment["name"], segment["drifted"], segment["columns"][0]["name"]) for segment in document["segments"]
    } == {("Oslo", True, "age"), ("Rome", True, "age")}
    (tmp_path / "both.csv").write_text((tmp_path / "old.csv").read_text() + (tmp_path / "new.csv").read_text()[8:])
    (change,) = json.loads(quick_cli("drift", "stream", "both.csv", "age", "--json").stdout)
    assert 400 < change["row"] < 560
    assert quick_cli("drift", "stream", new, "age", "--detector", "kswin").stdout == "No change.\n"
    assert "no column 'city' of numbers" in quick_cli("drift", "stream", new, "city").stderr
