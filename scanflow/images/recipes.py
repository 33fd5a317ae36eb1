"""Plan the images of an application's workflows: one for each batch step, one for an online workflow."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from scanflow.app.application import Application
from scanflow.app.executor import Executor
from scanflow.app.mpi import MPIWorkload
from scanflow.app.service import Service
from scanflow.app.workflow import Workflow
from scanflow.app_files import AppFiles
from scanflow.errors import InvalidError, UsageError
from scanflow.images.code_files import compute_digest, list_code_files
from scanflow.images.recipe import Recipe

ModelFolder: TypeAlias = Callable[[str], Path]
"""Takes a model's address in the registry; returns the folder with its files."""

AppNode: TypeAlias = Executor | Service | MPIWorkload

_BASE_REQUIREMENT: Final = re.compile(r"(?i)mlflow([-_.]skinny)?\s*([=<>!~].*)?")
_FILE_REQUIREMENT: Final = re.compile(r"\s*(-r|-c|--requirement|--constraint|-e|--editable)\b|\s*(\.{0,2}/|file:)")


class PlannedImage(NamedTuple):
    """An image, and the nodes that run in it."""

    workflow: str
    nodes: tuple[str, ...]
    recipe: Recipe


def plan_images(app: Application, workflows: Sequence[Workflow], base: str, models: ModelFolder) -> list[PlannedImage]:
    """Return the images to build for workflows; nodes that name one themselves (``image=``) need none.

    Raises:
        UsageError: a file of requirements is not there or refers to others, or two nodes of an online workflow name
            different images.
    """
    code = compute_digest(list_code_files(Path(app.app_dir)))
    return [
        PlannedImage(
            workflow.name, tuple(node.name for node in nodes), build_recipe(app, workflow, nodes, base, code, models)
        )
        for workflow in workflows
        for nodes in group_nodes(workflow)
        if find_user_image(nodes) is None
    ]


def group_nodes(workflow: Workflow) -> Iterator[tuple[AppNode, ...]]:
    """Yield the nodes of each container: all services of an online workflow, or a single step."""
    if workflow.services:
        yield tuple(workflow.services)
        return
    for node in workflow.nodes:
        yield (node,)


def find_user_image(nodes: Sequence[AppNode]) -> str | None:
    """Return the image that the nodes of one container name themselves; None: they name no image.

    Raises:
        UsageError: they name several.
    """
    node_by_image = {node.image: node.name for node in nodes if node.image is not None}
    if len(node_by_image) > 1:
        (first, first_node), (second, second_node) = list(node_by_image.items())[:2]
        raise UsageError(
            f"The nodes {first_node!r} and {second_node!r} run in one container, but name two images: {first!r} and "
            f"{second!r}. Name one image, or split the workflow in two."
        )
    return next(iter(node_by_image), None)


def build_recipe(
    app: Application, workflow: Workflow, nodes: Sequence[AppNode], base: str, code: str, models: ModelFolder
) -> Recipe:
    """Return the recipe of the image of nodes that share a container."""
    requirements = dict.fromkeys(line for node in nodes for line in collect_requirements(app, workflow, node, models))
    return Recipe(app=app.name, team=app.team, base=base, requirements=tuple(requirements), code=code)


def collect_requirements(app: Application, workflow: Workflow, node: AppNode, models: ModelFolder) -> list[str]:
    """Return a node's requirements: the lines of its file or list, or those saved with its registered model.

    Raises:
        NotFoundError: its file is not there.
        InvalidError: it refers to other files, which no image would have.
    """
    if isinstance(node, MPIWorkload):
        return []
    lines: list[str] = []
    if isinstance(node.requirements, str):
        file = AppFiles(app, workflow).find(node.requirements, node.name)
        lines = _split_lines(file.read_text(encoding="utf-8"))
    elif node.requirements is not None:
        lines = _split_lines("\n".join(node.requirements))
    for line in lines:
        if _FILE_REQUIREMENT.match(line):
            raise InvalidError(
                f"{node.name!r}: the requirements refer to another file ({line!r}), which is not in the image. List "
                "all of them in one file."
            )
    if isinstance(node, Service) and node.model is not None and not lines:
        lines = _read_model_requirements(models(node.model))
    return lines


def _read_model_requirements(folder: Path) -> list[str]:
    """Return the requirements saved with a model, except MLflow: the base image has the part that loads models."""
    file = folder / "requirements.txt"
    lines = _split_lines(file.read_text(encoding="utf-8")) if file.is_file() else []
    return [line for line in lines if not _BASE_REQUIREMENT.fullmatch(line)]


def _split_lines(text: str) -> list[str]:
    lines = (line.partition(" #")[0].strip() for line in text.splitlines())
    return [line for line in lines if line and not line.startswith("#")]
