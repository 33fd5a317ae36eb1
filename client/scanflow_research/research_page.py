"""The page of a reproduction: as HTML, which opens without a network, and as Markdown."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path

import scanflow
from scanflow.reports.sections import render_table
from scanflow.text.markup import Templates
from scanflow_research.figure import FigureResult, Verdict
from scanflow_research.figure_study import Reproduction
from scanflow_research.plot import draw_figure

MARKS: dict[Verdict, str] = {
    "holds": "✓ holds",
    "holds in part": "◐ holds in part",
    "does not hold": "✗ does not hold",
    "cannot be tested here": "– cannot be tested here",
}
COMMANDS = (
    "`scanflow reproduce --all --out DIR` measures these tables and figures of the thesis and the papers on a machine. "
    "It writes this page, an HTML page with plots, and each plot. It takes about 40 minutes on two cores. After an "
    "interrupt, the same command continues, and no finished round is measured again. `scanflow reproduce fig6.7` "
    "measures one figure; `--list` lists them."
)
READING = (
    "A claim compares two variants. It is checked on the ratio of their values, with its 95 % interval over rounds. "
    "'More' or 'less' holds only if the interval does not contain 1. 'The same' holds if the ratio is within 10 % of "
    "1, or if the interval contains 1."
)


def render_page(reproduction: Reproduction) -> str:
    """Return one HTML page without scripts or addresses."""
    verdicts = [(result.figure.name, format_title(result), MARKS[result.verdict]) for result in reproduction.results]
    return Templates("scanflow_research", "scanflow.reports").render(
        "reproduction.html.jinja",
        title="Reproduction",
        summary=describe(reproduction),
        reading=READING,
        verdicts=render_table(("figure", "what it shows", "verdict"), verdicts),
        sections=[(source, map(_describe_figure, results)) for source, results in group_by_source(reproduction)],
        experiments=reproduction.experiments,
    )


def render_markdown(reproduction: Reproduction) -> str:
    """Return the page as Markdown, without the plots."""
    lines = ["# Reproduction", "", COMMANDS, "", describe(reproduction), "", READING, ""]
    lines += ["| figure | what it shows | verdict |", "|---|---|---|"]
    for result in reproduction.results:
        reason = f": {result.reason}" if result.reason else ""
        lines.append(
            f"| {result.figure.name} | {format_title(result)} | {MARKS[result.verdict]}{_escape_cell(reason)} |"
        )
    for source, results in group_by_source(reproduction):
        rows = [finding for result in results for finding in result.findings]
        if not rows:
            continue
        lines += [
            "",
            f"## {source}",
            "",
            "| figure | the source says | in the source | here | verdict |",
            "|---|---|---|---|---|",
        ]
        for result in results:
            for finding in result.findings:
                cells = (
                    result.figure.name,
                    finding.claim.statement,
                    *_format_ratio(finding.claim.published, finding.measured),
                )
                lines.append(f"| {' | '.join(map(_escape_cell, cells))} | {MARKS[finding.verdict]} |")
    lines += ["", "## How it was measured", ""]
    lines += [f"- **{experiment.name}**: {experiment.method}" for experiment in reproduction.experiments]
    return "\n".join(lines) + "\n"


def describe(reproduction: Reproduction) -> str:
    """Return the machine, the version, the date and the counts in a sentence or two."""
    date = datetime.fromtimestamp(reproduction.began, UTC).strftime("%Y-%m-%d")
    counts = ", ".join(f"{count} {verdict}" for verdict, count in reproduction.counts.items())
    interrupted = " The command was interrupted." if reproduction.interrupted else ""
    figures = len(reproduction.results)
    return f"{figures} figures: {counts}. {reproduction.machine}; scanflow {scanflow.__version__}; {date}.{interrupted}"


def group_by_source(reproduction: Reproduction) -> Iterator[tuple[str, list[FigureResult]]]:
    """Yield the sources, each with its figures."""
    for source, results in groupby(reproduction.results, key=lambda result: result.figure.source.partition(",")[0]):
        yield source, list(results)


def format_title(result: FigureResult) -> str:
    return f"{result.figure.title}{' (simulated)' if result.simulated else ''}"


def _describe_figure(result: FigureResult) -> dict[str, str]:
    rows = [
        (finding.claim.statement, *_format_ratio(finding.claim.published, finding.measured), MARKS[finding.verdict])
        for finding in result.findings
    ]
    return {
        "heading": f"{result.figure.source.partition(', ')[2]}: {format_title(result)}",
        "verdict": MARKS[result.verdict] + (f". {result.reason}" if result.reason else ""),
        "claims": render_table(("the source says", "in the source", "here", "verdict"), rows) if rows else "",
        "plot": draw_figure(result),
    }


def _format_ratio(published: float | None, measured: str) -> tuple[str, str]:
    return ("" if published is None else f"{published:g}×", measured)


def _escape_cell(text: str) -> str:
    return text.replace("|", "/")


def write_files(reproduction: Reproduction, folder: Path) -> list[Path]:
    """Write ``reproduction.html``, ``reproduction.md`` and a plot of each figure, and return the first two."""
    files = [folder / "reproduction.html", folder / "reproduction.md"]
    files[0].write_text(render_page(reproduction), encoding="utf-8")
    files[1].write_text(render_markdown(reproduction), encoding="utf-8")
    for result in reproduction.results:
        drawn = draw_figure(result)
        if drawn:
            (folder / f"{result.figure.name}.svg").write_text(drawn, encoding="utf-8")
    return files
