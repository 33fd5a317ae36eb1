"""Which modules of the product have a function that a command executes in its own process; to import one is no visit.

``python -m tests.visited_modules FILE ARGUMENT...`` runs ``scanflow ARGUMENT...`` and writes a JSON object into FILE:
by module the functions that were executed. ``python -m tests.visited_modules FILE`` prints such a file.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType

ROOT = Path(__file__).parents[1]
PROGRAMS = ("scanflow", "client/scanflow_client", "agents/scanflow_agents", "server/scanflow_server")
VALUES = ("scanflow/app/", "scanflow/text/", "scanflow/graphs.py", "scanflow/names.py", "scanflow/errors.py")
"""What a reader of a path need not open: values that users declare, graphs of names, names, errors, helpers of text."""


@contextmanager
def record_functions() -> Iterator[dict[str, set[str]]]:
    """Record the functions of the product that are executed, by module, in all threads that are started meanwhile."""
    codes = set[CodeType]()
    functions: dict[str, set[str]] = {}

    def note(frame: FrameType, event: str, _arg: object) -> None:
        if event == "call":
            codes.add(frame.f_code)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield functions
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        for code in codes:
            path = Path(code.co_filename)
            if code.co_flags & 0x1 and path.is_relative_to(ROOT) and not code.co_name.startswith("<"):
                module = path.relative_to(ROOT).as_posix()
                if module.startswith(PROGRAMS):
                    functions.setdefault(module, set()).add(code.co_qualname)


def select_modules(functions: dict[str, set[str]]) -> list[str]:
    """Return the modules of a path, without those of values."""
    return sorted(module for module in functions if not module.startswith(VALUES))


def main(file: Path, arguments: list[str]) -> None:
    if not arguments:
        functions = {module: set(names) for module, names in json.loads(file.read_text()).items()}
        chosen = select_modules(functions)
        for module, names in sorted(functions.items()):
            print(f"{'' if module in chosen else '(value) '}{module}: {', '.join(sorted(names))}")
        print(f"{len(functions)} modules, {len(chosen)} without those of values")
        return
    sys.argv = ["scanflow", *arguments]
    functions = {}
    try:
        with record_functions() as functions:
            from scanflow_client.cli.main import main as run_command

            run_command()
    finally:
        file.write_text(json.dumps({module: sorted(names) for module, names in functions.items()}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
