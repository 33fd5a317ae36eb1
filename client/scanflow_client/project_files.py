"""The projects that ``scanflow init`` writes: plain files, in a folder for each template, with a name to replace.

The folder ``common`` holds what every project gets. A file called ``gitignore`` is written as ``.gitignore``.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from scanflow.errors import InternalError, InvalidError, NotFoundError, UnavailableError, did_you_mean
from scanflow.names import MAX_NAME, build_slug, format_environment_name

DEFAULT_TEMPLATE = "batch"
_COMMON = "common"
_NAME, _IDENTIFIER = "my-app", "my_app"  # in the files; so that they run as they are


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectTemplate:
    name: str
    summary: str
    command: str
    """The first command to run: ``DIR/`` stands for the project's folder, and is nothing in that folder."""

    def format_command(self, folder: Path) -> str:
        prefix = "" if folder == Path() else f"{shlex.quote(str(folder))}/"
        return self.command.replace("DIR/", prefix)


TEMPLATES: Mapping[str, ProjectTemplate] = {
    template.name: template
    for template in (
        ProjectTemplate(
            name="batch", summary="a workflow: steps, a fan-out, a result", command="scanflow run DIR/app.py"
        ),
        ProjectTemplate(
            name="service",
            summary="a model of a table: trained, registered and served",
            command="scanflow run DIR/app.py:training",
        ),
        ProjectTemplate(
            name="loop",
            summary="a served model that agents watch and retrain",
            command="scanflow run DIR/app.py:training",
        ),
        ProjectTemplate(
            name="agent",
            summary="an agent: a sensor, a rule, a call and a primitive of one's own",
            command="scanflow strategies DIR/app.py",
        ),
        ProjectTemplate(
            name="mpi", summary="an MPI job in C", command="mpicc -O2 -o DIR/pi DIR/pi.c && scanflow run DIR/app.py:job"
        ),
        ProjectTemplate(
            name="notebook",
            summary="a notebook and the module that it imports",
            command="jupyter lab DIR/notebook.ipynb",
        ),
    )
}


def get_template(name: str) -> ProjectTemplate:
    if name not in TEMPLATES:
        raise NotFoundError(
            f"There is no template {name!r}.{did_you_mean(name, TEMPLATES)} Templates: {', '.join(TEMPLATES)}."
        )
    return TEMPLATES[name]


def build_application_name(folder: Path) -> str:
    """Return a valid application name for a folder: its name, with what is not allowed replaced."""
    longest = MAX_NAME - len(format_environment_name("", "default"))
    return build_slug(folder.absolute().name)[:longest].rstrip("-") or "app"


def read_files(template: str, name: str) -> dict[PurePosixPath, str]:
    """Return the files of a project, by their paths in it, with the application's name in place."""
    folder = _get_folder()
    identifier = re.sub(r"^(?=\d)", "app_", name.replace("-", "_"))
    files: dict[PurePosixPath, str] = {}
    for source in (folder / _COMMON, folder / template):
        for path in sorted(source.rglob("*")):
            if path.is_file() and path.parent.name != "__pycache__":
                place = path.relative_to(source).as_posix().replace(_IDENTIFIER, identifier)
                target = PurePosixPath(".gitignore" if place == "gitignore" else place)
                files[target] = path.read_text(encoding="utf-8").replace(_NAME, name).replace(_IDENTIFIER, identifier)
    return files


def write_project(folder: Path, files: Mapping[PurePosixPath, str]) -> list[Path]:
    """Write the files below a folder, and return their paths; nothing is written where one of them exists.

    Raises:
        InvalidError: a file exists already, or the folder is none.
        UnavailableError: the files cannot be written.
    """
    paths = [folder / place for place in files]
    if present := [path for path in paths if path.exists() or path.is_symlink()]:
        names = " and ".join(repr(str(path)) for path in present)
        verb = "The file {} exists" if len(present) == 1 else "The files {} exist"
        raise InvalidError(f"{verb.format(names)} already. Name another folder: scanflow init my-app")
    try:
        for path, text in zip(paths, files.values(), strict=True):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    except (FileExistsError, NotADirectoryError) as error:
        raise InvalidError(f"{error.filename!r} is a file. Name another folder: scanflow init my-app") from error
    except OSError as error:
        raise UnavailableError(f"{error.filename!r} cannot be written: {error.strerror}.") from error
    return paths


def _get_folder() -> Path:
    for folder in (Path(__file__).parent / "project_templates", Path(__file__).parents[2] / "project_templates"):
        if (folder / _COMMON).is_dir():
            return folder
    raise InternalError("The templates of projects were not installed with scanflow.")
