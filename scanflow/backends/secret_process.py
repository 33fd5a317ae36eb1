"""The process around a script with secrets: it resolves them, runs the script, and masks what that prints.

Run as ``python -P -m scanflow.backends.secret_process <request>``, where the script would run. The request holds
references only. A function's process does so itself, by :func:`resolve_secrets`.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from scanflow.backends.placed_secrets import place_secrets
from scanflow.backends.script_process import format_option
from scanflow.errors import InvalidError
from scanflow.files.private import write_private
from scanflow.files.secret_sources import format_pod_variable, read_secret_sources, read_secrets
from scanflow.outputs import OUTPUTS_FOLDER
from scanflow.processes.masked_process import end_as, run_masked
from scanflow.text.masking import Masker

_EXIT_REFUSED = 125
BLOCK_BYTES, _OVERLAP = 16 * 1024 * 1024, 64 * 1024
"""How much of an output is searched at once, and how much of it again, for what is split between two blocks."""


@dataclass(frozen=True, slots=True)
class SecretRequest:
    argv: Sequence[str]
    """The script's process."""

    folder: str
    """The application's folder."""

    variables: Mapping[str, str] = field(default_factory=dict)
    """References by the names of variables."""

    masked: Sequence[str] = ()
    """Further references: they are masked in what the step prints."""

    options: Sequence[Any] | None = None
    """The options of the script, in the order of its command line: text, or ``[name, value, secrets]`` of a parameter
    with secrets. None: it has none of these, and its options are in ``argv``."""

    def write(self, file: Path) -> list[str]:
        """Write the request; return the command that runs it."""
        write_private(file, json.dumps(asdict(self)))
        return [sys.executable, "-P", "-m", __name__, str(file)]


def main(request_path: str) -> None:
    request = SecretRequest(**json.loads(Path(request_path).read_text(encoding="utf-8")))
    placed = [source for option in request.options or () if not isinstance(option, str) for _, source in option[2]]
    try:
        secrets = resolve_secrets(Path(request.folder), [*request.variables.values(), *placed], request.masked)
    except InvalidError as error:
        sys.stderr.write(f"{error}\n")
        raise SystemExit(_EXIT_REFUSED) from None
    set_variables(request.variables, secrets)
    sent = None
    if request.options is not None:
        sent = [word for option in request.options for word in _format_option(option, secrets)]
    code = run_masked(request.argv, os.environ, secrets.values(), sent=sent)
    refused = check_outputs(secrets)  # after a failure too: the names of its files are shown
    end_as(code or refused)


def resolve_secrets(folder: Path, own: Iterable[str], masked: Iterable[str]) -> dict[str, str]:
    """Return the secrets of a step by their references, and those of ``masked`` as far as there are any.

    Raises:
        InvalidError: there is no secret in one of its own.
    """
    return {**read_secrets(masked, folder), **read_secret_sources(own, folder)}


def set_variables(references: Mapping[str, str], secrets: Mapping[str, str]) -> None:
    """Set this process's variables to secrets; those by which a pod got them are removed."""
    for source in secrets:
        os.environ.pop(format_pod_variable(source), None)
    os.environ.update({name: secrets[source] for name, source in references.items()})


def _format_option(option: Any, secrets: Mapping[str, str]) -> list[str]:
    """Return the words of an option: the one that is given, or those of a parameter with secrets."""
    if isinstance(option, str):
        return [option]
    name, value, places = option
    value = place_secrets(value, places, secrets)
    return format_option(name, value if isinstance(value, str) else json.dumps(value))


def check_outputs(secrets: Mapping[str, str]) -> int:
    """Refuse the outputs of a step that hold a secret, and whatever has one in its name in the step's output folder:
    they are kept, shown, and read by other steps. They are deleted. Return the step's exit code."""
    folder = Path(os.environ.get("SCANFLOW_OUTPUT_DIR") or "/nowhere")
    outputs, shown = folder / OUTPUTS_FOLDER, Masker.from_values(secrets.values())
    maskers = {source: Masker.from_values([secret], all_texts=False) for source, secret in secrets.items()}
    refusals = []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix().removeprefix(f"{OUTPUTS_FOLDER}/")
        for source, masker in maskers.items():
            if masker.occurs_in(name):
                place = f"has the secret {source!r} in its name"
                _delete(path)
            elif outputs in path.parents and path.is_file() and _occurs_in(path, masker):
                place = f"holds the secret {source!r}"
                _delete(outputs)
            else:
                continue
            refusals.append(
                f"The output {shown.mask_text(name)!r} {place}, and outputs are kept and shown. Give the reference "
                f"to the steps that need it: sf.secret({source!r})\n"
            )
    sys.stderr.write("".join(refusals[:1]))
    return 1 if refusals else 0


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):  # which would name it
            path.unlink()


def _occurs_in(file: Path, masker: Masker) -> bool:
    before = b""
    with file.open("rb") as content:
        while block := content.read(BLOCK_BYTES):
            if masker.occurs_in_bytes(before + block):
                return True
            before = block[-_OVERLAP:]
    return False


if __name__ == "__main__":
    main(sys.argv[1])
