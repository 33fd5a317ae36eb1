"""The process of a function step: loads the function, calls it and writes its result.

Run as ``python function_process.py <request>`` if the step has its own environment, else in a fork of the warm shim.

What the function raises is left to the interpreter: its traceback goes to the step's standard error, its exit code is
1. Of a ``sys.exit`` the interpreter prints no traceback, so it is printed here.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class FunctionRequest:
    name: str
    """``file.py:name`` or ``package.module:name``."""

    who: str
    """The step, for messages."""

    file: str | None
    """The function's file; None: it is imported by its module, or loaded from ``by_value``."""

    by_value: str | None
    """A signed pickle of the function, if no file defines it."""

    path: list[str] | None
    """The module search path; None: this interpreter's, which has its own environment."""

    parameters: Any
    """As ``values.encode`` wrote them into the folder of this request."""

    exact: Any
    """Which parts of them functions returned, which annotations do not change: an ``annotations.Exact``."""

    key: str
    """The home's key for signing pickles, in hexadecimal digits."""

    secrets: list[Any] = field(default_factory=list)
    """Where secrets stand in the parameters, and their references: a list of ``placed_secrets.SecretPath``."""

    variables: dict[str, str] = field(default_factory=dict)
    """References to the secrets that variables of the environment get."""

    masked: list[str] = field(default_factory=list)
    """References to what is masked in the step's output, in addition."""

    folder: str = ""
    """The application's folder, which paths of secrets are relative to."""

    def write(self, file: Path) -> None:
        from scanflow.files.private import write_private

        write_private(file, json.dumps(asdict(self)))


def main(request_path: str) -> None:
    request_file = Path(request_path)
    request = FunctionRequest(**json.loads(request_file.read_text(encoding="utf-8")))
    own = sys.path[1:]  # the first entry is this file's folder, whose modules are not to be imported by accident
    path = own if request.path is None else request.path
    sys.path[:] = sorted(path, key=lambda entry: entry not in own)  # a user's file may be named as what we import
    from scanflow.app.steps import call_function, check_parameters, check_result
    from scanflow.application_loading import load_function
    from scanflow.backends.pickles import read_pickle
    from scanflow.backends.values import decode, write_result

    secrets = _resolve_secrets(request)
    sys.path[:], sys.argv[:] = path, [request.file or request.name]  # as if the file was run by itself
    key = bytes.fromhex(request.key)
    if request.by_value:
        function = read_pickle(Path(request.by_value), key)
    else:
        function = load_function(request.name, Path(request.file) if request.file else None)
    given = decode(request.parameters, request_file.parent, key)
    if request.secrets:
        from scanflow.backends.placed_secrets import place_secrets

        given = place_secrets(given, request.secrets, secrets)
    parameters = check_parameters(function, given, who=request.who, exact=request.exact)
    try:
        result = call_function(function, parameters)
    except SystemExit as exit_:
        traceback.print_exc()
        raise SystemExit(exit_.code if isinstance(exit_.code, int) else exit_.code and 1) from None
    write_result(check_result(function, result, who=request.who), Path(os.environ["SCANFLOW_OUTPUT_DIR"]), key)


def _resolve_secrets(request: FunctionRequest) -> dict[str, str]:
    """Return the step's secrets by their references. Its output is masked from then on."""
    own = [*request.variables.values(), *(source for _, source in request.secrets)]
    if not own and not request.masked:
        return {}
    from scanflow.backends.secret_process import check_outputs, resolve_secrets, set_variables
    from scanflow.errors import InvalidError
    from scanflow.processes.masked_process import mask_from_here

    try:
        secrets = resolve_secrets(Path(request.folder), own, request.masked)
    except InvalidError as error:
        sys.stderr.write(f"{error}\n")
        raise SystemExit(1) from None
    mask_from_here(list(secrets.values()), lambda: check_outputs(secrets))
    set_variables(request.variables, secrets)
    return secrets


if __name__ == "__main__":
    main(sys.argv[1])
