"""Outputs as the files that they are kept in: a server sends them unloaded, and its client decodes them.

Loading a pickle runs code of the step's author, so a server checks only its signature, which is by the key of its home.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from scanflow.backends.pickles import load_pickle, read_signed
from scanflow.backends.values import encode, list_output_names, parse_output, read_output_file
from scanflow.errors import TooLargeError, UnavailableError
from scanflow.outputs import OUTPUTS_FOLDER, PICKLE, write_output

MAX_BYTES: Final = 256 * 2**20
"""How much of a step's outputs a server sends, in bytes."""

_PICKLE_SIGNS: Final = (PICKLE.encode(), rb"\u00")
"""A text that names a pickle has one of them: as it is, or with a letter of it escaped. Others are not parsed."""


@dataclass(frozen=True, slots=True)
class OutputFiles:
    """The files of one task's outputs, checked and not loaded."""

    folder: str
    """The folder that relative paths in them are of."""

    texts: Mapping[str, bytes]
    """By the outputs' names: JSON, or what a program wrote."""

    pickles: Mapping[str, bytes]
    """By the names of the files that the texts name; without signatures."""

    def load(self) -> dict[str, Any]:
        """Return the outputs as ``values.Outputs`` does. Loading a pickle runs code.

        Raises:
            InvalidError: an output is neither JSON nor text, or of a class that cannot be imported.
        """
        return self.parse(lambda name: load_pickle(self.pickles[name], folder=Path(self.folder)))

    def parse(self, load: Callable[[str], Any]) -> dict[str, Any]:
        """Return the outputs, with what ``load`` returns for the name of a pickle."""
        return {name: parse_output(name, text, Path(self.folder), load=load) for name, text in self.texts.items()}


class OutputFilesReader:
    """Reads the files of tasks' outputs, and loads none: of all tasks of a step together so many bytes at most."""

    def __init__(self, max_bytes: int | None = None) -> None:
        """``max_bytes``: None: ``MAX_BYTES``."""
        self._max_bytes = self._left_bytes = MAX_BYTES if max_bytes is None else max_bytes

    def read(self, folder: Path, key: bytes) -> OutputFiles:
        """Read the files of the outputs in one task's folder.

        Raises:
            InvalidError: a pickle is not one that a run of this home wrote, or what may name one is neither JSON nor
                text.
            TooLargeError: they have more than ``max_bytes``, together with those that were read before.
        """
        outputs, pickles = folder / OUTPUTS_FOLDER, dict[str, bytes]()

        def read_pickled(name: str) -> None:
            if name not in pickles:
                pickles[name] = self._read(outputs / name, partial(read_signed, key=key))

        texts = {name: self._read(outputs / name, read_output_file) for name in list_output_names(outputs)}
        naming = {name: text for name, text in texts.items() if any(sign in text for sign in _PICKLE_SIGNS)}
        OutputFiles(str(folder), naming, pickles).parse(read_pickled)
        return OutputFiles(str(folder), texts, pickles)

    def _read(self, file: Path, read: Callable[[Path], bytes]) -> bytes:
        self._left_bytes -= file.lstat().st_size if file.exists() else 0
        if self._left_bytes < 0:
            raise TooLargeError(
                f"The outputs have more than the {self._max_bytes / 2**20:g} MiB that a server sends. Read them where "
                "the run's home is: sf.Client().output(...); or have the step write a file, and return its path."
            )
        return read(file)


def dump_outputs(values: Mapping[str, Any], max_bytes: int | None = None) -> OutputFiles:
    """Return values that lie in no folder as the files that would hold them.

    Raises:
        InvalidError: one cannot be pickled.
        TooLargeError: they have more than ``max_bytes``; None: than ``MAX_BYTES``.
    """
    key = secrets.token_bytes(32)
    with TemporaryDirectory() as folder:
        for name, value in values.items():
            write_output(Path(folder), name, json.dumps(encode(value, Path(folder), key)))
        return replace(OutputFilesReader(max_bytes).read(Path(folder), key), folder="")


def dump_output_files(outputs: OutputFiles | list[OutputFiles], app_dir: str) -> Iterator[bytes]:
    """Yield outputs as they are sent: a line of JSON, which says what follows, and the contents.

    Args:
        outputs: Those of a step, or of each task of a fan-out.
        app_dir: The application's folder, which has the classes of values.
    """
    tasks = outputs if isinstance(outputs, list) else [outputs]
    described = [
        {
            "folder": task.folder,
            "texts": {name: len(text) for name, text in task.texts.items()},
            "pickles": {name: len(content) for name, content in task.pickles.items()},
        }
        for task in tasks
    ]
    head = {"app_dir": app_dir, "fan_out": isinstance(outputs, list), "tasks": described}
    yield json.dumps(head).encode() + b"\n"
    for task in tasks:
        yield from task.texts.values()
        yield from task.pickles.values()


def parse_output_files(sent: bytes) -> tuple[OutputFiles | list[OutputFiles], str]:
    """Return what :func:`dump_output_files` was given.

    Raises:
        UnavailableError: a part is missing.
    """
    head, _, contents = sent.partition(b"\n")
    position = 0

    def cut(sizes: Mapping[str, int]) -> dict[str, bytes]:
        nonlocal position
        parts = {}
        for name, size in sizes.items():
            parts[name] = contents[position : position + size]
            position += size
        return parts

    try:
        about = json.loads(head)
        tasks = [OutputFiles(task["folder"], cut(task["texts"]), cut(task["pickles"])) for task in about["tasks"]]
        outputs, app_dir = tasks if about["fan_out"] else tasks[0], str(about["app_dir"])
        if position != len(contents):
            raise ValueError(position)
    except (ValueError, LookupError, TypeError) as error:
        raise UnavailableError("The server sent only a part of the outputs. Try again.") from error
    return outputs, app_dir
