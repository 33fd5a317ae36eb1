"""Select the image of a pod's container, and whether the application's code is mounted into it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, Self, TypeAlias

from scanflow.app.application import Application
from scanflow.app.executor import Executor
from scanflow.app.workflow import Workflow
from scanflow.backends.backend_port import Models
from scanflow.backends.function_store import is_saved_function
from scanflow.backends.kubernetes.code_configmap import CodeConfigMap, build_code
from scanflow.backends.kubernetes.expiring_set import ExpiringSet
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.kubernetes_settings import KubernetesSettings
from scanflow.errors import UsageError
from scanflow.images.build_settings import ImageSettings
from scanflow.images.code_files import compute_digest, list_code_files
from scanflow.images.image_records import BuiltImages
from scanflow.images.image_registry import has_image
from scanflow.images.recipe import Recipe
from scanflow.images.recipes import AppNode, ModelFolder, build_recipe, find_user_image

FindImage: TypeAlias = Callable[[Recipe], str | None]
"""Returns the image that was built from a recipe and that nodes can pull; None: there is none."""


_MISSING_TTL_S = 5.0
"""How long a registry's 404 is cached: a run asks when it is checked and again when it is driven."""


class PodImage(NamedTuple):
    """The image of a container, and the code to mount."""

    image: str
    code: CodeConfigMap | None
    """The ConfigMap with the code, which the container needs if the image does not contain the code."""

    @property
    def volumes(self) -> list[Manifest]:
        return [] if self.code is None else [self.code.volume]

    @property
    def mounts(self) -> list[Manifest]:
        return [] if self.code is None else [self.code.mount]


class BuiltImageFinder:
    """Finds the image of a recipe, among those built in a home and those pushed to the registry.

    An image never changes under its tag, so that a hit in the registry is cached for good.
    """

    def __init__(self, settings: KubernetesSettings, home: Path) -> None:
        self._built, self._registry = BuiltImages(home), settings.registry
        self._available: set[str] = set()
        self._missing = ExpiringSet(_MISSING_TTL_S)

    def __call__(self, recipe: Recipe) -> str | None:
        built = self._built.find_pullable(recipe.tag, self._registry)
        if built is not None or self._registry is None:
            return built
        image = recipe.format_name(self._registry)
        if image not in self._available and image not in self._missing:
            if has_image(image, insecure=ImageSettings.from_environment().insecure):
                self._available.add(image)
            else:
                self._missing.add(image)
        return image if image in self._available else None


class PodImages:
    """The images of one application's workflow. The folder is read once, on first use."""

    def __init__(
        self,
        app: Application,
        workflow: Workflow,
        settings: KubernetesSettings,
        find_image: FindImage,
        models: ModelFolder,
    ) -> None:
        self._app, self._workflow, self._settings = app, workflow, settings
        self._find_image, self._models = find_image, models
        self._images: dict[str, str | None] = {}

    @classmethod
    def open(
        cls, app: Application, workflow: Workflow, settings: KubernetesSettings, find_image: FindImage, models: Models
    ) -> Self:
        """Return the images of a workflow, with its models fetched from the model registry."""
        return cls(app, workflow, settings, find_image, lambda model: Path(models.fetch(model).path))

    def select(self, *nodes: AppNode) -> PodImage:
        """Return the image of the container of some nodes: one step, or all services of a workflow.

        That is the image that a node names; else the one that ``scanflow build`` made of the code and requirements as
        they are now; else the base image with the code mounted.

        Raises:
            UsageError: nothing was built, and the nodes have requirements, or the code is too large to be mounted; or
                nodes that run together name different images.
        """
        if (own := find_user_image(nodes)) is not None:
            return PodImage(own, None)
        if not Path(self._app.app_dir).is_dir() and all(map(_is_by_value, nodes)):
            return PodImage(self._settings.image, None)  # a notebook's, whose folder is on another machine
        recipe = build_recipe(self._app, self._workflow, nodes, self._settings.image, self._digest, self._models)
        if recipe.tag not in self._images:
            self._images[recipe.tag] = self._find_image(recipe)
        if (image := self._images[recipe.tag]) is not None:
            return PodImage(image, None)
        if recipe.requirements and not self._settings.image_complete:
            raise UsageError(
                f"{nodes[0].name!r} needs {', '.join(recipe.requirements[:3])}{', …' * (len(recipe.requirements) > 3)}"
                ", and no image has that with the current code. Build one: scanflow build --push. Or name one that "
                "has it: image=…"
            )
        return PodImage(self._settings.image, self._code)

    @cached_property
    def _digest(self) -> str:
        return compute_digest(list_code_files(Path(self._app.app_dir)))

    @cached_property
    def _code(self) -> CodeConfigMap:
        namespace = self._settings.derive_namespace(self._app.name, self._app.team)
        return build_code(self._app.name, self._app.team, namespace, Path(self._app.app_dir))


def is_independent(node: AppNode) -> bool:
    """Return whether a node needs no files of its application's folder."""
    return getattr(node, "image", None) is not None or _is_by_value(node)


def _is_by_value(node: AppNode) -> bool:
    """Return whether a node is a function sent by value, which needs no other files of its application."""
    return (
        isinstance(node, Executor) and not node.requirements and is_saved_function(str(node.function).partition(":")[0])
    )
