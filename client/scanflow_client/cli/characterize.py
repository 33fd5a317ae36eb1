"""``scanflow characterize``: what a program needs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from scanflow.errors import InvalidError, NotFoundError
from scanflow_client.cli.options import JsonOption, parse_counts
from scanflow_client.cli.output import print_json, progress_stream, say

_UNCOUNTED = {
    "cpu-migrations": "migrations between CPUs: perf is not there, or may not count",
    "cache-misses": "cache misses: this machine does not count them, or perf may not",
}
"""Of perf's events, what is said where they are not counted."""


def characterize(
    command: Annotated[list[str], Argument(metavar="-- COMMAND...", help="The program, with its arguments.")],
    cores: Annotated[
        str | None, Option("--cores", metavar="N,N", help="Numbers of cores to try. Default: 1,2,4 and so on, to all.")
    ] = None,
    rounds: Annotated[int, Option("--rounds", metavar="N", min=1, max=100, help="Runs on each number of cores.")] = 3,
    memory: Annotated[bool, Option("--memory/--no-memory", help="Search how little memory it runs with.")] = True,
    timeout: Annotated[str, Option("--timeout", metavar="TIME", help="The longest that a run may take.")] = "10m",
    write: Annotated[
        str | None,
        Option("--write", metavar="APP:NAME", help="Print a patch of a file that asks for them: app.py:train."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Run a program on more and more cores, and with less and less memory, and say which resources to ask for."""
    from scanflow.app.quantities import parse_duration
    from scanflow.characterization.program import counters, group_problem, run_program
    from scanflow.characterization.study import characterize as measure
    from scanflow.characterization.study import core_counts, placements
    from scanflow.placement.sysfs import read_topology
    from scanflow_client.formatting.characterize import as_json as written
    from scanflow_client.formatting.characterize import characterization_screen
    from scanflow_client.progress import output_on

    if write is not None:
        patch_of(write, "")  # what cannot be written is known before minutes are spent
    machine, limit_s = read_topology(), parse_duration(timeout, what="--timeout")
    counts = (
        core_counts(machine)
        if cores is None
        else parse_counts(cores, "--cores", what="numbers of cores", example="1,2,4")
    )
    missing = [] if group_problem() is None else [f"memory limits. {group_problem()}"]
    missing += [words for event, words in _UNCOUNTED.items() if event not in counters()]
    with output_on(progress_stream(as_json)) as output:
        found = measure(
            lambda where, limit: run_program(command, where, timeout_s=limit_s, limit_bytes=limit),
            placements(machine, counts),
            rounds=rounds,
            search_memory=memory and group_problem() is None,
            missing=missing,
            observe=output.update,
        )
    if as_json:
        print_json(written(found))
    else:
        say(*characterization_screen(found))
    if write is not None:
        print(patch_of(write, str(found.recommendation)), end="", file=sys.stderr if as_json else sys.stdout)


def patch_of(where: str, resources: str) -> str:
    """Return the patch of ``app.py:NAME``."""
    from scanflow_client.resources_patch import resources_patch

    file, colon, name = where.rpartition(":")
    if not colon or not file or not name:
        raise InvalidError(f"--write {where!r} names no step. Write the file and the step: --write app.py:train")
    try:
        text = Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise NotFoundError(f"{file!r} cannot be read: {error}") from error
    return resources_patch(text, file, name, resources)
