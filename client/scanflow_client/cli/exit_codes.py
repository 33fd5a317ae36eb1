"""The exit codes of the command line: what each means, and what to do."""

from __future__ import annotations

from typing import Final, NamedTuple


class ExitCode(NamedTuple):
    """An exit code."""

    code: int
    meaning: str
    """For ``--help``: a few words."""

    remedy: str
    """What is more to say of it, and what to do, in sentences."""


DONE: Final = ExitCode(0, "done", "It is also the exit code where the reader of the output, such as `head`, has left.")
FAILED: Final = ExitCode(
    1,
    "a step, or a component of a service, failed, or a replay differs",
    "A step: `scanflow resume` continues the run. A component: `scanflow logs NAME`. `scanflow replay`: today's rules "
    "decide differently.",
)
WRONG_INPUT: Final = ExitCode(2, "your input needs a change", "The message says which.")
UNAVAILABLE: Final = ExitCode(
    3,
    "something is unavailable, try again",
    "For example a full disk, a tracker that does not answer, or another process that drives the run. `scanflow "
    "doctor`: something is wrong. `scanflow status`: the server does not answer. `scanflow down`: something still "
    "runs. `scanflow drift check --fail-on-drift`: there is drift.",
)
DEFECT: Final = ExitCode(4, "a defect of scanflow", "The message names the file with the traceback. Please report it.")
STOPPED: Final = ExitCode(130, "stopped", "Ctrl-C ended the command.")

EXIT_CODES: Final = (DONE, FAILED, WRONG_INPUT, UNAVAILABLE, DEFECT, STOPPED)


def format_exit_codes() -> str:
    """Return the exit codes as a sentence, for ``--help``."""
    return f"Exit codes: {'; '.join(f'{row.code} {row.meaning}' for row in EXIT_CODES)}."
