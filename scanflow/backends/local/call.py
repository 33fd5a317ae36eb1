"""A function step's own process: loads the function, calls it, keeps what it returned.

Run as ``python call.py <request>`` where the step has an environment of its own, and in a fork of the warm spawner
elsewhere.

What the function raises is left to the interpreter: its traceback goes to the step's standard error, its exit code is
1.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

__all__ = ["Request", "main"]


@dataclass(frozen=True, slots=True)
class Request:
    """Which function to call, and with what."""

    name: str
    """``file.py:name`` or ``package.module:name``."""

    who: str
    """The step, for messages."""

    file: str | None
    """The function's file; None: found by its module, or in ``by_value``."""

    by_value: str | None
    """A pickled function, for those that no file defines."""

    path: list[str] | None
    """Where modules are looked for; None: where this interpreter looks, which has an environment of its own."""

    parameters: Any
    """As ``values.encode`` wrote them into the folder of this request."""

    def write(self, file: Path) -> None:
        """Keep the request where :func:`main` reads it."""
        file.write_text(json.dumps(asdict(self)), encoding="utf-8")


def main(request_path: str) -> None:
    """Do what the request asks for."""
    request_file = Path(request_path)
    request = Request(**json.loads(request_file.read_text(encoding="utf-8")))
    # Nothing beside this file may be imported by accident, so its folder (the first entry) must go in either case.
    sys.path[:] = sys.path[1:] if request.path is None else request.path
    import cloudpickle

    from scanflow.app.steps import check_parameters, check_result
    from scanflow.backends.local.values import decode, write_result
    from scanflow.loading import load_function

    if request.by_value:
        # Written by this user's own runner, in this user's own home folder.
        function = cloudpickle.loads(Path(request.by_value).read_bytes())
    else:
        function = load_function(request.name, Path(request.file) if request.file else None)
    parameters = check_parameters(function, decode(request.parameters, request_file.parent), who=request.who)
    result = function(**parameters)
    write_result(check_result(function, result, who=request.who), Path(os.environ["SCANFLOW_OUTPUT_DIR"]))


if __name__ == "__main__":
    main(sys.argv[1])
