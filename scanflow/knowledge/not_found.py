"""What is not there, said in the same words by every adapter, with the nearest thing that is."""

from __future__ import annotations

from collections.abc import Iterable

from scanflow.errors import InvalidError, NotFoundError, did_you_mean


def unknown_application(app: str, team: str) -> NotFoundError:
    """No save of this application."""
    return NotFoundError(
        f"Application {app!r} of team {team!r} was never saved here. Save it first, or check both names and the "
        "tracker."
    )


def unknown_artifacts(app: str, team: str, name: str, known: Iterable[str]) -> NotFoundError:
    """No artifacts of this name."""
    advice = did_you_mean(name, set(known)) or " Save some first."
    return NotFoundError(f"Application {app!r} of team {team!r} has no artifacts {name!r}.{advice}")


def unknown_version_of(what: str, version: str, known: Iterable[str]) -> NotFoundError:
    """No such save."""
    return NotFoundError(
        f"{what} has no version {version!r}.{did_you_mean(version, known)} Leave it out for the newest."
    )


def unknown_model(name: str, known: Iterable[str]) -> NotFoundError:
    """No model of this name."""
    return NotFoundError(
        f"There is no model {name!r}.{did_you_mean(name, known) or ' Register a version of it first.'}"
    )


def unknown_version(name: str, version: int | str, numbers: Iterable[int], aliases: Iterable[str]) -> NotFoundError:
    """No version of this number or alias."""
    known = [*(str(number) for number in sorted(numbers)[-6:]), *aliases]
    if isinstance(version, str):
        return NotFoundError(f"Model {name!r} has no version with the alias {version!r}.{did_you_mean(version, known)}")
    # Numbers that look alike are not near each other, so they are listed rather than guessed at.
    return NotFoundError(f"Model {name!r} has no version {version}. Known: {', '.join(known) or 'none'}.")


def unknown_run(run_id: str) -> NotFoundError:
    """No run of this id."""
    return NotFoundError(f"There is no run {run_id!r} here. Search the environment's runs for its id.")


def unknown_path(run_id: str, path: str, known: Iterable[str]) -> NotFoundError:
    """Nothing at this place among a run's artifacts."""
    if not path:
        return NotFoundError(f"The run {run_id!r} has no artifacts.")
    return NotFoundError(f"The run {run_id!r} has no artifact {path!r}.{did_you_mean(path, set(known))}")


def check_owner(environment: str, owner: tuple[str, str], wanted: tuple[str, str]) -> None:
    """Refuse to let two applications share an environment, which ``a-b`` of ``c`` and ``a`` of ``b-c`` would.

    Raises:
        InvalidError: the environment is another's.
    """
    if owner != wanted:
        raise InvalidError(
            f"Application {wanted[0]!r} of team {wanted[1]!r} would share the environment {environment!r} with "
            "application "
            f"{owner[0]!r} of team {owner[1]!r}, which was here first. Rename one of the two."
        )


def check_model_folder(run_id: str, path: str, *, is_file: bool) -> None:
    """Refuse to register a lone file as a model: a model is a folder.

    Raises:
        InvalidError: ``path`` is a file.
    """
    if is_file:
        raise InvalidError(
            f"The artifact {path!r} of run {run_id!r} is a file, and a model is a folder. Log the file inside a "
            "folder, "
            "or fetch it and register it from where it is."
        )
