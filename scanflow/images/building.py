"""Build the images of an application that are not built yet."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from scanflow.errors import UsageError
from scanflow.images.builders import Builder, Say
from scanflow.images.code_files import list_code_files
from scanflow.images.image_records import BuiltImage, BuiltImages
from scanflow.images.recipe import Recipe, render_dockerfile
from scanflow.images.recipes import PlannedImage


class ImageRecord(BaseModel):
    """One image of an application, after a build."""

    model_config = ConfigDict(frozen=True)

    image: str
    workflow: str
    nodes: tuple[str, ...]
    """The nodes that run in it."""

    state: Literal["built", "unchanged"]
    pushed: bool
    seconds: float


def build_images(
    app_dir: Path,
    planned_images: Sequence[PlannedImage],
    *,
    builder: Callable[[], Builder],
    built: BuiltImages,
    registry: str | None,
    push: bool = False,
    again: bool = False,
    say: Say,
    clock: Callable[[], float] = time.monotonic,
) -> list[ImageRecord]:
    """Build the images that are not built yet, push them on request, and return all in order.

    ``again`` rebuilds existing ones too, on the newest base image: one may get other content under the same name.

    Raises:
        UsageError: an image cannot be built or pushed, or there is no registry to push to. What was built before that
            is kept, and not built again.
    """
    if push and registry is None:
        raise UsageError(
            "No registry is configured to push to. Name one: --registry host:5000, or SCANFLOW_KUBERNETES_REGISTRY."
        )
    records: list[ImageRecord] = []
    done: set[str] = set()
    for planned in planned_images:
        image, tag, start = planned.recipe.format_name(registry), planned.recipe.tag, clock()
        before = built.find(tag)
        is_built = before is not None and before.image == image and (tag in done or not again)
        pushed = is_built and before is not None and before.pushed
        if not is_built:
            _build(app_dir, planned.recipe, image, builder(), say, pull=again)
            built.keep(tag, BuiltImage(image=image, pushed=False))
        if push and not pushed:
            builder().push(image, say)
            pushed = True
            built.keep(tag, BuiltImage(image=image, pushed=True))
        done.add(tag)
        state: Literal["built", "unchanged"] = "unchanged" if is_built else "built"
        seconds = round(clock() - start, 3)
        records.append(
            ImageRecord(
                image=image, workflow=planned.workflow, nodes=planned.nodes, state=state, pushed=pushed, seconds=seconds
            )
        )
    return records


def _build(app_dir: Path, recipe: Recipe, image: str, builder: Builder, say: Say, *, pull: bool) -> None:
    with tempfile.TemporaryDirectory(prefix="scanflow-image-") as folder:
        context = Path(folder)
        write_context(app_dir, recipe, context)
        builder.build(context, image, say, pull=pull)


def write_context(app_dir: Path, recipe: Recipe, context: Path) -> None:
    """Write the build context: the ``Dockerfile``, the code and the requirements."""
    (context / "Dockerfile").write_text(render_dockerfile(recipe), encoding="utf-8")
    if recipe.requirements:
        (context / "requirements.txt").write_text("\n".join(recipe.requirements) + "\n", encoding="utf-8")
    (context / "code").mkdir()
    for file in list_code_files(app_dir):
        target = context / "code" / file.name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file.path, target)
        target.chmod(0o755 if file.executable else 0o644)  # others may have no rights here: no image runs as its owner
