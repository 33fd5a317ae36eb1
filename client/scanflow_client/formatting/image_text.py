"""Output of ``scanflow build``."""

from __future__ import annotations

from collections.abc import Sequence

from scanflow.images.building import ImageRecord
from scanflow.images.recipe import render_dockerfile
from scanflow.images.recipes import PlannedImage
from scanflow_client.formatting.text_table import Screen, Table

_NO_IMAGES = "No image is needed: each step and service names its own."


def format_build(records: Sequence[ImageRecord], target: str | None) -> Screen:
    """Return the built images, and the next command."""
    if not records:
        return [_NO_IMAGES]
    rows = [
        (
            record.workflow,
            ", ".join(record.nodes),
            record.image,
            record.state,
            "pushed" if record.pushed else "local only",
        )
        for record in records
    ]
    table = Table(("workflow", "runs", "image", "state", "where"), rows)
    if all(record.pushed for record in records):
        return [table]
    command = "scanflow build" if target is None else f"scanflow build {target}"
    return [table, f"Nodes of a cluster pull images from a registry: {command} --push --registry HOST:PORT"]


def format_dockerfiles(images: Sequence[PlannedImage], registry: str | None) -> Screen:
    """Return the distinct Dockerfiles, below their images' names."""
    if not images:
        return [_NO_IMAGES]
    lines: list[str] = []
    for recipe in dict.fromkeys(image.recipe for image in images):
        users = ", ".join(f"{image.workflow}:{'+'.join(image.nodes)}" for image in images if image.recipe == recipe)
        lines += [f"# {recipe.format_name(registry)}, for {users}", *render_dockerfile(recipe).splitlines()]
        lines += [f"# requirements.txt: {line}" for line in recipe.requirements]
        lines.append("")
    return lines[:-1]
