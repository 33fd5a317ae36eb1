"""Which image a pod's container runs, and whether the application's code is mounted in it."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, Self, TypeAlias

from scanflow.app.application import Application
from scanflow.app.executor import Executor
from scanflow.app.workflow import Workflow
from scanflow.backends.kubernetes.code import Code, code_of
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.labels import namespace_of
from scanflow.backends.kubernetes.recently import Recently
from scanflow.backends.kubernetes.settings import KubernetesSettings
from scanflow.backends.port import Models
from scanflow.errors import UsageError
from scanflow.images.files import digest_files, list_code_files
from scanflow.images.recipe import Recipe
from scanflow.images.recipes import AppNode, ModelFolder, build_recipe, find_own_image
from scanflow.images.records import BuiltImages
from scanflow.images.registry import has_image
from scanflow.images.settings import ImageSettings

FindImage: TypeAlias = Callable[[Recipe], str | None]
"""From what an image is made of to the one that was built and that nodes can pull; None: there is none."""


_NOT_THERE_FOR_S = 5.0
"""How long an image that the registry had not is not asked for again: a run asks when it is checked and driven."""

_SENT = re.compile(r"[0-9a-f]{64}\.pickle:")


class PodImage(NamedTuple):
    """What a container runs."""

    image: str
    code: Code | None
    """The ConfigMap that has to be there, where the image does not have the code itself."""

    @property
    def volumes(self) -> list[Manifest]:
        return [] if self.code is None else [self.code.volume]

    @property
    def mounts(self) -> list[Manifest]:
        return [] if self.code is None else [self.code.mount]


class FindBuilt:
    """Finds the image of a recipe: a home knows what was built from it, and the registry what others pushed.

    An image never changes under its tag, so that one that the registry had is not asked for again.
    """

    def __init__(self, settings: KubernetesSettings, home: Path) -> None:
        self._built, self._registry = BuiltImages(home), settings.registry
        self._there: set[str] = set()
        self._not_there = Recently(_NOT_THERE_FOR_S)

    def __call__(self, recipe: Recipe) -> str | None:
        found = self._built.find_pullable(recipe.tag, self._registry)
        if found is not None or self._registry is None:
            return found
        image = recipe.name(self._registry)
        if image not in self._there and image not in self._not_there:
            if has_image(image, insecure=ImageSettings.from_environment().insecure):
                self._there.add(image)
            else:
                self._not_there.note(image)
        return image if image in self._there else None


class PodImages:
    """The images of one application's workflow. The folder is read when it is first needed, and once."""

    def __init__(
        self, app: Application, workflow: Workflow, settings: KubernetesSettings, built: FindImage, models: ModelFolder
    ) -> None:
        self._app, self._workflow, self._settings = app, workflow, settings
        self._built, self._models = built, models
        self._found: dict[str, str | None] = {}

    @classmethod
    def open(
        cls, app: Application, workflow: Workflow, settings: KubernetesSettings, find: FindImage, models: Models
    ) -> Self:
        """Return those that are found, with what the registry's models need."""
        return cls(app, workflow, settings, find, lambda model: Path(models.fetch(model).path))

    def of(self, *nodes: AppNode) -> PodImage:
        """Return what the container of nodes that run together has: one step, or all services of a workflow.

        That is the image that a node names; else the one that ``scanflow build`` made of the code and requirements as
        they are now; else the base image with the code mounted.

        Raises:
            UsageError: nothing was built, and the nodes have requirements, or the code is too large to be mounted; or
                nodes that run together name different images.
        """
        if (own := find_own_image(nodes)) is not None:
            return PodImage(own, None)
        if not Path(self._app.app_dir).is_dir() and all(map(_is_by_value, nodes)):
            return PodImage(self._settings.image, None)  # a notebook's, whose folder is on another machine
        recipe = build_recipe(self._app, self._workflow, nodes, self._settings.image, self._digest, self._models)
        if recipe.tag not in self._found:
            self._found[recipe.tag] = self._built(recipe)
        if (image := self._found[recipe.tag]) is not None:
            return PodImage(image, None)
        if recipe.requirements and not self._settings.image_complete:
            raise UsageError(
                f"{nodes[0].name!r} needs {', '.join(recipe.requirements[:3])}{', …' * (len(recipe.requirements) > 3)}"
                ", and no image has that with the code as it is now. Build it: scanflow build --push. Or name one that "
                "has it: image=…"
            )
        return PodImage(self._settings.image, self._code)

    @cached_property
    def _digest(self) -> str:
        return digest_files(list_code_files(Path(self._app.app_dir)))

    @cached_property
    def _code(self) -> Code:
        namespace = namespace_of(self._app.name, self._app.team)
        return code_of(self._app.name, self._app.team, namespace, Path(self._app.app_dir))


def _is_by_value(node: AppNode) -> bool:
    """Return whether a node is a function that was sent, and needs nothing else of its application."""
    return isinstance(node, Executor) and not node.requirements and bool(_SENT.match(node.target or ""))
