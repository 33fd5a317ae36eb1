"""What ``scanflow build`` prints."""

from __future__ import annotations

from collections.abc import Sequence

from scanflow.images.building import ImageRecord
from scanflow.images.recipe import dockerfile
from scanflow.images.recipes import PlannedImage
from scanflow_client.formatting.table import Screen, Table

_NONE = "No image is needed: each step and service names one itself."


def build_screen(records: Sequence[ImageRecord], target: str | None) -> Screen:
    """Return what was built, and the next command."""
    if not records:
        return [_NONE]
    rows = [
        (one.workflow, ", ".join(one.nodes), one.image, one.state, "pushed" if one.pushed else "here only")
        for one in records
    ]
    table = Table(("workflow", "runs", "image", "state", "where"), rows)
    if all(one.pushed for one in records):
        return [table]
    command = "scanflow build" if target is None else f"scanflow build {target}"
    return [table, f"Nodes of a cluster pull images from a registry: {command} --push --registry HOST:PORT"]


def print_screen(wanted: Sequence[PlannedImage], registry: str | None) -> Screen:
    """Return the Dockerfiles, each once, below their images' names."""
    if not wanted:
        return [_NONE]
    lines: list[str] = []
    for recipe in dict.fromkeys(one.recipe for one in wanted):
        users = ", ".join(f"{one.workflow}:{'+'.join(one.nodes)}" for one in wanted if one.recipe == recipe)
        lines += [f"# {recipe.name(registry)}, for {users}", *dockerfile(recipe).splitlines()]
        lines += [f"# requirements.txt: {line}" for line in recipe.requirements]
        lines.append("")
    return lines[:-1]
