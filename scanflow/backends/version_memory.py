"""Whether two versions of a service's models fit the GPU memory of an instance. Both are in its process while one
replaces the other, and as long as one is a canary or shadow. Pure, but for the sizes of files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from scanflow.accelerators.accelerator_port import Inventory
from scanflow.app.quantities import format_bytes
from scanflow.backends.device_claims import find_part, measure_use
from scanflow.instance_messages import ModelFiles, Node, Revision
from scanflow.placement.device_grants import DeviceGrant

_ON_DEVICE: Final = re.compile(r"^  (pytorch|onnx|tensorflow|keras|transformers|sentence_transformers):", re.MULTILINE)
"""The flavors in ``MLmodel`` whose files are the weights that a device gets. Others use cores, or nobody knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceMemory:
    """What an instance needs of the memory of its GPUs while it serves, and what it may hold."""

    instance: str
    gpus: tuple[int, ...]
    """Their numbers."""

    needed_bytes: int | None
    """None: it was not seen on them, or they do not say."""

    bound_bytes: int | None
    """Its share, or what others leave it; None: not known."""

    @property
    def free_bytes(self) -> int | None:
        """What is left for a second version; None: not known."""
        if self.needed_bytes is None or self.bound_bytes is None:
            return None
        return max(0, self.bound_bytes - self.needed_bytes)

    def __str__(self) -> str:
        who = f"instance {self.instance}"
        numbers = ", ".join(map(str, self.gpus))
        if self.needed_bytes is None or self.bound_bytes is None:
            return f"what {who} holds of GPU {numbers} is not known"
        needed, bound = format_bytes(self.needed_bytes), format_bytes(self.bound_bytes)
        return f"{who} needs {needed} of the {bound} that it may hold of GPU {numbers}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedVersions:
    """What a change loads beside what is served."""

    names: tuple[str, ...]
    """``models:/digits/2``, or the node whose class it is."""

    file_bytes: int | None
    """At least so much of the device: the weights as they lie on disk. None: nothing is known."""

    def __str__(self) -> str:
        return " and ".join(self.names)

    def describe_size(self) -> str:
        """Return ``at least 12 GiB, the size of its files``."""
        if self.file_bytes is None:
            return "an unknown amount"
        return f"at least {format_bytes(self.file_bytes)}, the size of its files"


def measure_memory(
    inventory: Inventory, instance: str, grants: Sequence[DeviceGrant], session: int, unused_bytes: int
) -> InstanceMemory:
    """Return the memory of an instance, which leads a session.

    ``unused_bytes``: what its framework keeps of the device and gives to the next model.
    """
    held = [measure_use(inventory, grant, session).own_bytes for grant in grants]
    bounds = [_compute_bound(inventory, grant, own or 0) for grant, own in zip(grants, held, strict=True)]
    seen = [own for own in held if own is not None]
    limits = [bound for bound in bounds if bound is not None]
    return InstanceMemory(
        instance=instance,
        gpus=tuple(dict.fromkeys(grant.number for grant in grants)),
        needed_bytes=max(0, sum(seen) - unused_bytes) if seen else None,
        bound_bytes=sum(limits) if len(limits) == len(grants) else None,
    )


def _compute_bound(inventory: Inventory, grant: DeviceGrant, own_bytes: int) -> int | None:
    part = find_part(inventory, grant)
    limits = [] if grant.memory_bytes is None else [grant.memory_bytes]
    if part is not None and part.memory_bytes is not None:
        others = max(0, (part.memory_used_bytes or 0) - own_bytes)
        limits.append(part.memory_bytes - others)
    return min(limits, default=None)


def list_loaded_nodes(before: Sequence[Revision], after: Sequence[Revision]) -> list[Node]:
    """Return the nodes that an instance loads for the revisions ``after`` beside those of ``before``: equal ones are
    loaded once, but for a shadow, which is called beside the others."""
    by_id, shadow = {revision.id: revision for revision in before}, {revision.id: revision.shadow for revision in after}
    there = {
        (_strip(node), revision.shadow and shadow.get(revision.id, True))
        for revision in before
        for node in revision.nodes
    }
    return [
        node
        for revision in after
        if not _is_loaded(revision, by_id.get(revision.id))
        for node in revision.nodes
        if (_strip(node), revision.shadow) not in there
    ]


def _is_loaded(revision: Revision, there: Revision | None) -> bool:
    return there is not None and there.nodes == revision.nodes and (there.shadow or not revision.shadow)


def _strip(node: Node) -> str:
    return repr(replace(node, parents=(), batching=None))


def measure_versions(nodes: Iterable[Node]) -> LoadedVersions:
    """Return what nodes are to load, and how large its files are."""
    names, sizes = [], []
    for node in nodes:
        names.append(node.name if node.model is None else f"models:/{node.model.name}/{node.model.version}")
        sizes.append(None if node.model is None else _measure_files(node.model))
    measured = [size for size in sizes if size is not None]
    return LoadedVersions(names=tuple(dict.fromkeys(names)), file_bytes=sum(measured) if measured else None)


def _measure_files(model: ModelFiles) -> int | None:
    folder = Path(model.path)
    try:
        if not _ON_DEVICE.search((folder / "MLmodel").read_text(encoding="utf-8")):
            return None
        return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    except (OSError, UnicodeDecodeError):
        return None


def find_full_instance(memories: Iterable[InstanceMemory], added: LoadedVersions) -> InstanceMemory | None:
    """Return an instance that has no room for what is added; None: all have it, as far as is known."""
    needed = added.file_bytes or 0
    return next((memory for memory in memories if memory.free_bytes is not None and needed > memory.free_bytes), None)


def describe_fit(memories: Sequence[InstanceMemory], added: LoadedVersions) -> str:
    """Return for people whether what is added fits, where no instance is full."""
    unknown = next((memory for memory in memories if memory.free_bytes is None), None)
    if unknown is not None or added.file_bytes is None:
        why = str(unknown) if unknown is not None else f"what {added} takes of a GPU is not known"
        return f"{why}: whether both versions fit its memory shows when they are loaded; if not, the first serves on"
    least = min(memories, key=lambda memory: memory.free_bytes or 0)
    return f"{least}; {added} adds {added.describe_size()}"


def explain_overflow(memory: InstanceMemory, added: LoadedVersions) -> str:
    """Return why what is added does not fit."""
    return f"{memory}, and {added} adds {added.describe_size()}: there is no room for both versions"


def fits_beside(inventory: Inventory, grants: Sequence[DeviceGrant], added: LoadedVersions) -> bool:
    """Return whether the devices of an instance have memory for the process that replaces it, as far as is known."""
    if added.file_bytes is None:
        return True
    free = [
        part.memory_bytes - part.memory_used_bytes
        for grant in grants
        if (part := find_part(inventory, grant)) is not None
        and part.memory_bytes is not None
        and part.memory_used_bytes is not None
    ]
    return len(free) < len(grants) or sum(free) >= added.file_bytes
