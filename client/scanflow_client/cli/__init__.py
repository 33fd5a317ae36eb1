"""The command line: ``scanflow``. Each command imports what it needs when it runs, so that ``--help`` is quick."""

from __future__ import annotations

import logging
import os
import sys

from scanflow.errors import ScanflowError, ServiceFailedError, StepFailedError, UnavailableError, UsageError
from scanflow.printable import printable

__all__ = ["main"]

EXIT_CODES = """\
Exit codes: 0 done; 1 a step, or a component of a service, failed, or a replay differs;
2 your input needs a change; 3 something did not answer, try again; 4 a defect of scanflow; 130 stopped.
"""


def main() -> None:
    """Run the command line; errors become one message and an exit code."""
    from scanflow_client.cli.app import app

    # What is retried is nothing to report: a command says at its end what it gave up on.
    logging.getLogger("stamina").addHandler(logging.NullHandler())
    try:
        app(prog_name="scanflow")
    except StepFailedError as error:
        _fail(str(error), 1)
    except ServiceFailedError as error:
        _fail(f"Error: {error}", 1)
    except UsageError as error:
        _fail(f"Error: {error}", 2)
    except UnavailableError as error:
        _fail(f"Error: {error}", 3)
    except ScanflowError as error:
        _fail(f"This is a defect of scanflow: {error}", 4)
    except BrokenPipeError:
        # The reader of our output (head, a pager) has gone. Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except KeyboardInterrupt:
        sys.exit(130)


def _fail(message: str, code: int) -> None:
    sys.stdout.flush()
    sys.stderr.write(printable(message) + "\n")
    sys.exit(code)
