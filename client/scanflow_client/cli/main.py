"""The entry point of the command line: its errors as messages and exit codes."""

from __future__ import annotations

import errno
import gc
import io
import logging
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from scanflow.errors import (
    InvalidError,
    ScanflowError,
    ServiceFailedError,
    StepFailedError,
    UnavailableError,
    UsageError,
)
from scanflow.text.masking import mask_addresses
from scanflow.text.printable import make_one_line, make_printable
from scanflow_client.cli.exit_codes import DEFECT, DONE, FAILED, STOPPED, UNAVAILABLE, WRONG_INPUT

__all__ = ["main"]

# By the error's class or its nearest base: the prefix of the message, and the exit code.
_OUTCOMES: dict[type, tuple[str, int]] = {
    StepFailedError: ("", FAILED.code),
    ServiceFailedError: ("Error: ", FAILED.code),
    UsageError: ("Error: ", WRONG_INPUT.code),
    UnavailableError: ("Error: ", UNAVAILABLE.code),
    ScanflowError: ("This is a defect of scanflow: ", DEFECT.code),
}

_BUSY = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM, errno.EBUSY}
"""What may pass by itself, or with less in use."""

_EXTRAS = {
    "cryptography": "server",
    "hera": "kubernetes",
    "lightkube": "kubernetes",
    "numpy": "drift",
    "pandas": "drift",
    "pyarrow": "drift",
    "scipy": "drift",
}
"""The extra that brings a package which commands import without a message of their own."""


def main() -> None:
    """Run the command line, and turn errors into a message and an exit code."""
    # What is imported stays, some 75,000 objects: collecting among it (by default after 700) took a tenth of a command.
    gc.set_threshold(100_000)
    if isinstance(sys.stdout, io.TextIOWrapper):  # its encoding may have no ✓: a ? takes its place
        sys.stdout.reconfigure(errors="replace")
    # Retries are not logged: a command reports its final failure.
    logging.getLogger("stamina").addHandler(logging.NullHandler())
    try:
        from scanflow_client.cli.command_tree import app

        arguments = sys.argv[1:]
        _check_arguments(arguments)
        del sys.argv[1:]  # they are ours: a user's file may parse those that it finds, as if it was run by itself
        try:
            app(arguments, prog_name="scanflow")
        finally:
            sys.stdout.flush()  # while what fails is still caught
    except ScanflowError as error:
        prefix, code = next(_OUTCOMES[kind] for kind in type(error).__mro__ if kind in _OUTCOMES)
        _fail(f"{prefix}{error}", code)
    except SystemExit as ended:  # typer's, which takes a closed pipe for a failure
        if isinstance(ended.__context__, BrokenPipeError):
            _leave_closed_pipe()
        raise
    except BrokenPipeError:
        _leave_closed_pipe()
    except KeyboardInterrupt:
        sys.exit(STOPPED.code)
    except ModuleNotFoundError as error:
        _fail(*_describe_missing_module(error))
    except OSError as error:  # a file, folder or stream that the command line names
        _fail(*_describe_file_error(error))
    except Exception as error:  # noqa: BLE001  people see no traceback
        _fail(*_describe_defect(error))


def _fail(text: str, code: int) -> NoReturn:
    try:
        sys.stdout.flush()
    except OSError:
        _close_stdout()
    sys.stderr.write(f"{make_printable(mask_addresses(text))}\n")
    sys.exit(code)


def _leave_closed_pipe() -> NoReturn:
    """Exit as the reader of our output (head, a pager) has."""
    _close_stdout()
    sys.exit(DONE.code)


def _close_stdout() -> None:
    """Have what is still to be written go nowhere: Python would raise again when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _check_arguments(arguments: Sequence[str]) -> None:
    for word in arguments:
        if (shown := word.encode(errors="replace").decode()) != word:
            raise InvalidError(f"The argument {shown!r:.200} is not UTF-8 text. Write it in UTF-8, or rename the file.")


def _describe_file_error(error: OSError) -> tuple[str, int]:
    """Return the message of a file, folder or stream that cannot be used, and the exit code."""
    name = "" if error.filename is None else f"{str(error.filename)!r:.300} "
    if error.errno in _BUSY:
        text = f"Error: {name or 'The output '}cannot be used: {error.strerror}. Free some, and try again."
        return text, UNAVAILABLE.code
    text = f"Error: {name or 'A file '}cannot be used: {error.strerror or error}. Name another file or folder."
    return text, WRONG_INPUT.code


def _describe_missing_module(error: ModuleNotFoundError) -> tuple[str, int]:
    package = (error.name or "").partition(".")[0]
    if package not in _EXTRAS:
        return _describe_defect(error)
    from scanflow.installation import explain_install

    return (
        f"Error: This command needs {package}, which is not installed. {explain_install(_EXTRAS[package])}",
        WRONG_INPUT.code,
    )


def _describe_defect(error: Exception) -> tuple[str, int]:
    import tempfile
    import traceback

    with tempfile.NamedTemporaryFile("w", prefix="scanflow-", suffix=".txt", delete=False, encoding="utf-8") as file:
        file.write(mask_addresses(traceback.format_exc()))
    cause = make_one_line(f"{type(error).__name__}: {error}", 300)
    return f"{_OUTCOMES[ScanflowError][0]}{cause}. Report it with {file.name}, which says where.", DEFECT.code
