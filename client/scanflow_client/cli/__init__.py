"""The command line ``scanflow``. Each command imports its dependencies when it runs, so that ``--help`` is fast."""

from __future__ import annotations

import logging
import os
import sys

from scanflow.errors import ScanflowError, ServiceFailedError, StepFailedError, UnavailableError, UsageError
from scanflow.text.masking import mask_addresses
from scanflow.text.printable import make_printable

__all__ = ["main"]

EXIT_CODES = """\
Exit codes: 0 done; 1 a step, or a component of a service, failed, or a replay differs;
2 your input needs a change; 3 something is unavailable, try again; 4 a defect of scanflow; 130 stopped.
"""

# By the error's class or its nearest base: the prefix of the message, and the exit code.
_OUTCOMES: dict[type, tuple[str, int]] = {
    StepFailedError: ("", 1),
    ServiceFailedError: ("Error: ", 1),
    UsageError: ("Error: ", 2),
    UnavailableError: ("Error: ", 3),
    ScanflowError: ("This is a defect of scanflow: ", 4),
}


def main() -> None:
    """Run the command line, and turn errors into a message and an exit code."""
    from scanflow_client.cli.app import app

    # Retries are not logged: a command reports its final failure.
    logging.getLogger("stamina").addHandler(logging.NullHandler())
    try:
        app(prog_name="scanflow")
    except ScanflowError as error:
        prefix, code = next(_OUTCOMES[kind] for kind in type(error).__mro__ if kind in _OUTCOMES)
        sys.stdout.flush()
        sys.stderr.write(f"{make_printable(mask_addresses(f'{prefix}{error}'))}\n")
        sys.exit(code)
    except BrokenPipeError:
        # The reader of our output (head, a pager) has exited. Python would raise again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except KeyboardInterrupt:
        sys.exit(130)
