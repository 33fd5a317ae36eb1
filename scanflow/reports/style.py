"""The colours of a report, for light and for dark. Each is written as an attribute, for programs that know no CSS, and
a class turns it over in the dark."""

from __future__ import annotations

from collections.abc import Mapping

COLOURS: Mapping[str, tuple[str, str]] = {
    "ink": ("#1f2430", "#e7e9ee"),
    "soft": ("#5b6372", "#a4acba"),
    "line": ("#d5d9e0", "#3a414d"),
    "blue": ("#1d63c4", "#7db1ff"),
    "red": ("#c22f3d", "#ff8a92"),
    "green": ("#1b7f4b", "#5fd398"),
    "amber": ("#9a6200", "#f0b95a"),
    "violet": ("#7440b5", "#c3a1ff"),
    "paper": ("#ffffff", "#171a20"),
}
"""Name: (on white, on black). Against their paper each has a contrast of 4.5 or more, ``line`` aside."""


def paint(fill: str | None = None, stroke: str | None = None) -> dict[str, str]:
    """Return the attributes that colour an element."""
    classes = [f"f-{fill}"] if fill else []
    classes += [f"s-{stroke}"] if stroke else []
    painted = {"class_": " ".join(classes), "fill": COLOURS[fill][0] if fill else "none"}
    return painted | ({"stroke": COLOURS[stroke][0]} if stroke else {})


STYLE = (
    "@media (prefers-color-scheme: dark){"
    + "".join(f".f-{name}{{fill:{dark}}}.s-{name}{{stroke:{dark}}}" for name, (_, dark) in COLOURS.items())
    + "}"
)
"""Inside each SVG, so that it is right when it stands alone too."""

PAGE = """
:root { color-scheme: light dark; --ink: #1f2430; --soft: #5b6372; --line: #d5d9e0; --paper: #fff; }
@media (prefers-color-scheme: dark) { :root { --ink: #e7e9ee; --soft: #a4acba; --line: #3a414d; --paper: #171a20; } }
body { margin: 0 auto; max-width: 1040px; padding: 24px 20px 60px; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
h1 { font-size: 28px; line-height: 1.2; margin: 16px 0 4px; }
h2 { font-size: 19px; margin: 40px 0 4px; }
p { margin: 4px 0 12px; color: var(--soft); }
figure { margin: 12px 0; overflow-x: auto; }
svg { display: block; min-width: 720px; width: 100%; height: auto; }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px 24px; margin: 20px 0; }
dt { color: var(--soft); font-size: 14px; }
dd { margin: 0; font-size: 24px; font-variant-numeric: tabular-nums; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th, td { text-align: left; padding: 6px 12px 6px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
td:first-child { white-space: nowrap; font-variant-numeric: tabular-nums; }
"""
