"""The secrets of this instance: resolved here, and masked in all that it prints, answers and reports."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from scanflow.files.secret_sources import read_secret_source, read_secrets
from scanflow.processes.masked_output import OutputMask
from scanflow.text.masking import SECRET_KEY


class InstanceSecrets:
    """An instance is a process; these are the secrets of its graph and of its variables."""

    def __init__(self) -> None:
        self._output, self._folder = OutputMask(), Path()

    def set_variables(self, references: Mapping[str, str], folder: Path, masked: Iterable[str] = ()) -> None:
        """Set environment variables to the secrets that references lead to; ``folder`` is the application's.

        ``masked``: what is masked too, where there is a secret.

        Raises:
            InvalidError: there is no secret in one of them.
        """
        self._folder = folder
        values = {name: read_secret_source(source, folder) for name, source in references.items()}
        self._output.add([*values.values(), *read_secrets(masked, folder).values()])
        os.environ.update(values)

    def resolve(self, parameters: Any) -> Any:
        """Return the parameters of a node with secrets in place of references.

        Raises:
            InvalidError: there is no secret in one of them.
        """
        if isinstance(parameters, Mapping):
            if set(parameters) == {SECRET_KEY}:
                value = read_secret_source(str(parameters[SECRET_KEY]), self._folder)
                self._output.add([value])
                return value
            return {name: self.resolve(inner) for name, inner in parameters.items()}
        return [self.resolve(inner) for inner in parameters] if isinstance(parameters, list | tuple) else parameters

    def mask(self, text: str) -> str:
        """Return a text of an answer or a report without the secrets."""
        masker = self._output.masker
        return masker.mask_text(text) if masker else text


secrets = InstanceSecrets()
