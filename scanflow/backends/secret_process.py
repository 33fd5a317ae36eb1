"""The process around a step with secrets: it resolves them, runs the step, and masks what the step prints.

Run as ``python -P -m scanflow.backends.secret_process <request>``, where the step would run. The request holds
references only.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from scanflow.backends.placed_secrets import place_secrets
from scanflow.backends.script_process import format_option
from scanflow.errors import InvalidError
from scanflow.files.private import write_private
from scanflow.files.secret_sources import format_pod_variable, read_secret_sources
from scanflow.outputs import OUTPUTS_FOLDER
from scanflow.processes.masked_process import end_as, run_masked
from scanflow.text.masking import Masker

_EXIT_REFUSED = 125


@dataclass(frozen=True, slots=True)
class SecretRequest:
    argv: Sequence[str]
    """The step's process."""

    folder: str
    """The application's folder."""

    variables: Mapping[str, str] = field(default_factory=dict)
    """References by the names of variables."""

    masked: Sequence[str] = ()
    """Further references: they are masked in what the step prints."""

    options: Sequence[Any] | None = None
    """The options of a script, in the order of its command line: text, or ``[name, value, secrets]`` of a parameter
    with secrets. None: it is a function's, or the script has no secret among its parameters."""

    parameters: Sequence[str] = ()
    """References that a function's process gets."""

    def write(self, file: Path) -> list[str]:
        """Write the request; return the command that runs it."""
        write_private(file, json.dumps(asdict(self)))
        return [sys.executable, "-P", "-m", __name__, str(file)]


def main(request_path: str) -> None:
    request = SecretRequest(**json.loads(Path(request_path).read_text(encoding="utf-8")))
    try:
        secrets = _read_all(request)
    except InvalidError as error:
        sys.stderr.write(f"{error}\n")
        raise SystemExit(_EXIT_REFUSED) from None
    variables = {name: secrets[source] for name, source in request.variables.items()}
    passed_on = {format_pod_variable(source) for source in secrets}
    env = {name: value for name, value in os.environ.items() if name not in passed_on} | variables
    sent: Any = None
    if request.options is not None:
        sent = [word for option in request.options for word in _format_option(option, secrets)]
    elif request.parameters:
        sent = {source: secrets[source] for source in request.parameters}
    code = run_masked(request.argv, env, secrets.values(), sent=sent)
    if code == 0 and (outputs := os.environ.get("SCANFLOW_OUTPUT_DIR")):
        code = _check_outputs(Path(outputs) / OUTPUTS_FOLDER, secrets)
    end_as(code)


def _read_all(request: SecretRequest) -> dict[str, str]:
    in_options = [source for option in request.options or () if not isinstance(option, str) for _, source in option[2]]
    own = read_secret_sources([*request.variables.values(), *in_options, *request.parameters], Path(request.folder))
    others: dict[str, str] = {}
    for source in request.masked:
        try:
            others |= read_secret_sources([source], Path(request.folder))
        except InvalidError:
            continue  # the step does not get it
    return {**others, **own}


def _format_option(option: Any, secrets: Mapping[str, str]) -> list[str]:
    """Return the words of an option: the one that is given, or those of a parameter with secrets."""
    if isinstance(option, str):
        return [option]
    name, value, places = option
    value = place_secrets(value, places, secrets)
    return format_option(name, value if isinstance(value, str) else json.dumps(value))


def _check_outputs(folder: Path, secrets: Mapping[str, str]) -> int:
    """Refuse an output that holds a secret: outputs are kept, shown, and read by other steps."""
    for source, secret in secrets.items():
        masker = Masker.from_values([secret])
        for file in sorted(folder.rglob("*")) if folder.is_dir() else ():
            if file.is_file() and masker.occurs_in_bytes(file.read_bytes()):
                shutil.rmtree(folder)
                sys.stderr.write(
                    f"The output {file.name!r} holds the secret {source!r}, and outputs are kept and shown. Give the "
                    f"reference to the steps that need it: sf.secret({source!r})\n"
                )
                return 1
    return 0


if __name__ == "__main__":
    main(sys.argv[1])
