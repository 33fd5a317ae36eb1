"""The document in a run's ConfigMap, for its pods and for processes that resume it."""

from __future__ import annotations

import gzip
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path, PurePath
from types import MappingProxyType
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field

from scanflow.backends.definition import SavedDefinition
from scanflow.backends.kubernetes.batch.launch_plan import plan_launches
from scanflow.backends.kubernetes.batch.pod_layout import (
    CREATED,
    DOCUMENT,
    DRIVE,
    LAUNCHES,
    PACKED_FILE,
    PACKED_LAUNCHES,
    format_config_map_name,
)
from scanflow.backends.kubernetes.kinds import Manifest, build_manifest
from scanflow.backends.kubernetes.object_labels import build_labels
from scanflow.backends.run_definition import RunDefinition
from scanflow.errors import InvalidError, UsageError

MAX_BYTES: int = 1_000_000
"""Bytes of an object: etcd takes 1.5 MB, and the engine adds its own."""

MIN_PACKED_BYTES: int = 200_000
"""The size in bytes from which a text is compressed; shorter ones can be read with ``kubectl``."""


class RunDocument(BaseModel):
    """The document of one run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run: str
    definition: SavedDefinition
    source: str | None = None
    created: float
    drive: int = 0
    """The number of its drives, which its last Workflow has."""

    kept: Mapping[str, tuple[int, ...]] = Field(default_factory=dict)
    """The finished tasks of fan-outs that run again."""

    origins: Mapping[str, str] = Field(default_factory=dict)
    """For a spin: the run that each earlier step's outputs are taken from."""

    max_fan_out: int = 10_000
    variables: Mapping[str, str] = Field(default_factory=dict)
    """Variables that make a task log to the tracker, with the placeholders ``@step@`` and ``@task@``."""

    def build_definition(self, app_dir: PurePath | None = None) -> RunDefinition:
        """Return the run's definition; ``app_dir``: the current folder of the application's files."""
        definition = self.definition.read(self.source)
        if app_dir is None:
            return definition
        app = definition.app.replace(app_dir=str(app_dir))
        return replace(definition, app=app, inherited=())

    def build_manifest(
        self,
        namespace: str,
        binary: Mapping[str, str],
        texts: Mapping[str, str] = MappingProxyType({}),
        annotations: Mapping[str, str] = MappingProxyType({}),
    ) -> Manifest:
        """Return the run's ConfigMap; ``binary`` is in base64: pickled functions, and the run's progress.

        Raises:
            UsageError: it is larger than an object may be.
        """
        definition = self.build_definition()
        app = definition.app
        # Of a spin each pod links the folders of past runs first.
        launches = "" if self.origins else plan_launches(definition, self.run, self.drive, self.variables)
        data, binary = {DOCUMENT: self.model_dump_json(), LAUNCHES: launches}, dict(binary)
        if sum(map(len, data.values())) > MIN_PACKED_BYTES:
            packed_names = {DOCUMENT: PACKED_FILE, LAUNCHES: PACKED_LAUNCHES}
            binary |= {packed_names[name]: _pack(text) for name, text in data.items() if text}
            data = {}
        data |= texts
        size = sum(map(len, [*data.values(), *binary.values()]))
        check_size(size, f"The run {self.run!r}", len(app.workflows[0].nodes))
        return build_manifest(
            "ConfigMap",
            {
                "name": format_config_map_name(self.run),
                "namespace": namespace,
                "labels": build_labels(app.name, app.team, run=self.run, workflow=self.definition.workflow),
                "annotations": {DRIVE: str(self.drive), CREATED: repr(self.created), **annotations},
            },
            data={name: text for name, text in data.items() if text},
            binaryData=binary,
        )

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read a run's ConfigMap where it is mounted."""
        if (packed := folder / PACKED_FILE).exists():
            return cls.model_validate_json(gzip.decompress(packed.read_bytes()))
        return cls.model_validate_json((folder / DOCUMENT).read_text(encoding="utf-8"))

    @classmethod
    def from_manifest(cls, manifest: Manifest) -> Self:
        """Read a run's ConfigMap.

        Raises:
            InvalidError: another program or version wrote it.
        """
        data: dict[str, Any] = manifest.get("data") or {}
        packed = (manifest.get("binaryData") or {}).get(PACKED_FILE)
        try:
            return cls.model_validate_json(data[DOCUMENT] if packed is None else gzip.decompress(b64decode(packed)))
        except (KeyError, ValueError, OSError, EOFError) as error:
            name = manifest["metadata"]["name"]
            raise InvalidError(
                f"The ConfigMap {name!r} in {manifest['metadata'].get('namespace')!r} was not written by this version "
                "of scanflow. Delete it, and start a new run."
            ) from error


def _pack(text: str) -> str:
    return b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def check_size(size: int, what: str, steps: int) -> None:
    """Raise for an object that is too large for a cluster.

    Raises:
        UsageError: with its size.
    """
    if size > MAX_BYTES:
        raise UsageError(
            f"{what} takes {size:,} bytes, more than the {MAX_BYTES:,} that an object of a cluster may have: it has "
            f"{steps:,} steps. Steps that differ only in parameters can be one with a list (for_each=...); or split it "
            "into workflows of fewer steps, or put long parameters into a file."
        )
