"""Serialization of values between steps: JSON for JSON's own types, pickles for all others, relocatable paths.

A task's output folder holds ``.outputs/<name>``, one JSON file for each named output; what a function returned is named
``result``. Inside, ``{"$path": ...}`` is a path, relative to the output folder where it lies in it; ``{"$pickle":
...}`` is a signed file beside it (see ``pickles.py``); ``{"$value": ...}`` is a user's own mapping that looks like one
of them. A value keeps its exact type: one with any part that is not of JSON's own types, as a tuple, an enum's member
or a number of NumPy's, is pickled whole.
"""

from __future__ import annotations

import copy
import json
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any

from scanflow import outputs as marks
from scanflow.app.parameters import is_exact_json
from scanflow.backends.pickles import dump_pickle, is_inside, load_pickle, read_pickle, write_pickle
from scanflow.backends.task_parameters import RESULT
from scanflow.errors import InternalError, InvalidError
from scanflow.files.disk import build_disk_error
from scanflow.outputs import OUTPUTS_FOLDER, write_output
from scanflow.text.failures import Failure

MAX_ARGUMENT_LENGTH = 120_000  # Linux takes 131,072 bytes in one argument
_PICKLE = re.compile(r"\.\d{1,9}\.pickle")


def write_result(value: Any, folder: Path, key: bytes) -> None:
    """Write a function's return value as the output ``result`` of the task with this output folder."""
    write_output(folder, RESULT, json.dumps(encode(value, folder, key)))


def describe_missing_result(folder: Path) -> Failure | None:
    """Return the failure of a function's process that ended well and left no result; None: it left one."""
    if (folder / OUTPUTS_FOLDER / RESULT).exists():
        return None
    cause = "The function ended its process (sys.exit, os._exit) before it returned. Return from it instead."
    return Failure(summary="ended without a result", cause=cause)


def copy_value(value: Any) -> Any:
    """Return a copy that shares nothing, so that each reader of an output has one of its own.

    Raises:
        InvalidError: it can neither be copied nor pickled.
    """
    try:
        return copy.deepcopy(value)
    except Exception:  # noqa: BLE001  a class of the user's may refuse in its own way
        return load_pickle(dump_pickle(value))


class Outputs(Mapping[str, Any]):
    """The named outputs of a task, read lazily. Text that is not JSON (a shell's ``echo good``) is returned as is."""

    def __init__(self, folder: Path, key: bytes) -> None:
        self._folder, self._key = folder, key
        self._names, self._seen = list_output_names(folder / OUTPUTS_FOLDER), dict[str, Any]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __getitem__(self, name: str) -> Any:
        """Return one output.

        Raises:
            InvalidError: it is neither JSON nor text, or holds what may not be loaded.
        """
        if name not in self._names:
            raise KeyError(name)
        if name not in self._seen:
            self._seen[name] = self._read(name)
        return self._seen[name]

    def _read(self, name: str) -> Any:
        content = read_output_file(self._folder / OUTPUTS_FOLDER / name)
        return parse_output(name, content, self._folder, load=lambda file: _load(self._folder, file, self._key))


def parse_output(name: str, content: bytes, folder: Path, *, load: Callable[[str], Any]) -> Any:
    """Return one output of its file's content; ``load`` returns the value of a pickle by its name.

    Raises:
        InvalidError: it is neither JSON nor text.
    """
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise InvalidError(
            f"The output {name!r} is neither JSON nor text: its byte {error.start} is not UTF-8. "
            "Write a file into the output folder, and name its path."
        ) from error
    try:
        return _decode(json.loads(text), folder, load)
    except json.JSONDecodeError:
        return text.rstrip("\n")
    except RecursionError as error:
        raise InvalidError(f"The output {name!r} is nested too deeply. Write a file, and name its path.") from error


def encode(value: Any, folder: Path, key: bytes) -> Any:
    """Return ``value`` as JSON; where JSON cannot represent it exactly, it is pickled into ``folder``.

    Raises:
        InvalidError: it cannot be pickled.
    """
    if is_exact_json(value, is_exact_path=lambda path: path.is_absolute() or is_inside(path, folder)):
        # A relative path stays relative, unless it is a file of the step's own.
        return marks.encode(value, folder, _refuse)
    outputs = folder / OUTPUTS_FOLDER
    outputs.mkdir(0o700, parents=True, exist_ok=True)
    name = f".{sum(1 for _ in outputs.glob('.*.pickle'))}.pickle"
    write_pickle(outputs / name, value, key, folder=folder)
    return {marks.PICKLE: name}


def decode(value: Any, folder: Path, key: bytes) -> Any:
    """Return the value that :func:`encode` encoded; ``folder`` is the output's current folder.

    A mark that :func:`encode` would not have made is a value like any other.

    Raises:
        InvalidError: a pickle is not one that a run of this home wrote.
    """
    return _decode(value, folder, lambda name: _load(folder, name, key))


def _decode(value: Any, folder: Path, load: Callable[[str], Any]) -> Any:
    if isinstance(value, list):
        return [_decode(inner, folder, load) if isinstance(inner, list | dict) else inner for inner in value]
    if not isinstance(value, dict):
        return value
    inner = next(iter(value.values()), None)
    if marks.is_mark(value):
        if marks.VALUE in value and isinstance(inner, dict):
            return {name: _decode(item, folder, load) for name, item in inner.items()}
        if marks.PATH in value and isinstance(inner, str) and (path := _parse_path(inner, folder)) is not None:
            return path
        if marks.PICKLE in value and isinstance(inner, str) and _PICKLE.fullmatch(inner):
            return load(inner)
    return {name: _decode(item, folder, load) for name, item in value.items()}


def _load(folder: Path, name: str, key: bytes) -> Any:
    return read_pickle(folder / OUTPUTS_FOLDER / name, key, folder=folder)


def format_argument(value: Any, *, who: str) -> str:
    """Format a parameter's value as one command-line argument: text as it is, anything else as JSON.

    Raises:
        InvalidError: it cannot be written as text, or is longer than a command line takes.
    """
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, str):
        text = value
    else:
        try:
            text = json.dumps(value, default=_serialize_path)
        except TypeError as error:
            raise InvalidError(
                f"{who} is a {type(value).__name__}, which cannot be passed to a script. Pass it as a file."
            ) from error
    if len(text.encode()) > MAX_ARGUMENT_LENGTH:
        raise InvalidError(
            f"{who} is {len(text):,} characters long; a command-line argument can have "
            f"{MAX_ARGUMENT_LENGTH:,}. Pass the path of a file."
        )
    return text


def _serialize_path(value: object) -> str:
    if isinstance(value, PurePath):
        return str(value)
    raise TypeError(type(value).__name__)


def list_output_names(outputs: Path) -> list[str]:
    """Return the names of the output files; links, pipes and folders are not outputs."""
    if outputs.is_symlink() or not outputs.is_dir():
        return []
    with os.scandir(outputs) as entries:
        return sorted(entry.name for entry in entries if entry.is_file(follow_symlinks=False) and entry.name[0] != ".")


def _parse_path(text: str, folder: Path) -> Path | None:
    """Return the path of an output: inside the step's folder, or absolute; None: it is neither."""
    path = PurePath(text)
    return None if "\0" in text or (".." in path.parts and not path.is_absolute()) else folder / path


def read_output_file(file: Path) -> bytes:
    try:
        with os.fdopen(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as opened:
            return opened.read() if stat.S_ISREG(os.fstat(opened.fileno()).st_mode) else b""
    except OSError as error:
        raise build_disk_error(error, file) from error


def _refuse(value: Any) -> Any:
    raise InternalError(f"A {type(value).__name__} is no JSON.")
