"""The process of a script with secrets among its parameters. Standard library only: the step's environment has its own
packages.

Run as ``python script_process.py <mainfile>``. The script's ``--name value ...`` come through a pipe, as every user of
a machine can read the arguments of a process; the script finds them in ``sys.argv`` as always.
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

_NEGATIVE_NUMBER = re.compile(r"-\d+|-\d*\.\d+")
"""What argparse of every version takes for a number, as other parsers do."""


def format_option(name: str, text: str) -> list[str]:
    """Return the words ``--name value`` of a command line.

    A value that a parser would take for an option (``--fast``, ``-1e-5``) is part of its name's word: ``--name=value``.
    """
    is_like_option = text.startswith("-") and not _NEGATIVE_NUMBER.fullmatch(text)
    return [f"--{name}={text}"] if is_like_option else [f"--{name}", text]


def main(mainfile: str) -> None:
    with os.fdopen(int(os.environ.pop("SCANFLOW_SECRETS_FD")), encoding="utf-8") as file:
        options = json.load(file)
    sys.argv[:] = [mainfile, *options]
    sys.path[0] = str(Path(mainfile).parent)
    import runpy  # a runner imports this file too

    runpy.run_path(mainfile, run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1])
