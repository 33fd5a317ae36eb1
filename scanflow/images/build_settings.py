"""Settings of image builds, read from the environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Self

from pydantic import BaseModel, ConfigDict

from scanflow.environment_variables import read_settings

_VARIABLES: Final = {
    "builder": "SCANFLOW_IMAGES_BUILDER",
    "options": "SCANFLOW_IMAGES_OPTIONS",
    "insecure": "SCANFLOW_IMAGES_INSECURE",
    "registry": "SCANFLOW_KUBERNETES_REGISTRY",  # what nodes pull from is what is pushed to
    "base": "SCANFLOW_KUBERNETES_IMAGE",
}

_OPTIONS: Final = {"registry": "registry", "base": "image"}


class ImageSettings(BaseModel):
    """The builder of images, their base image, and the registry they are pushed to."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    builder: str | None = None
    """``buildah``, ``podman`` or ``docker``. Unset: the first of them that is installed."""

    options: str = ""
    """Additional options of its command: ``--network host -v /etc/pip.conf:/etc/pip.conf:ro``."""

    insecure: bool = False
    """Whether the registry may use plain HTTP, or a certificate that is not verified."""

    registry: str | None = None
    """The registry that images are pushed to: ``host:5000`` or ``host:5000/project``. Unset: they stay on the
    machine that built them."""

    base: str = "scanflow/base:latest"
    """The base image of all images."""

    def with_overrides(self, changes: Mapping[str, str | bool | None]) -> Self:
        """Return these settings with the ``changes`` that are not None."""
        return self.model_copy(update={name: value for name, value in changes.items() if value is not None})

    @classmethod
    def name_variables(cls) -> dict[str, str]:
        """Return the environment variable of each field."""
        return dict(_VARIABLES)

    @classmethod
    def from_environment(
        cls, environ: Mapping[str, str] | None = None, *, options: Mapping[str, str] | None = None
    ) -> Self:
        """Read the settings from ``environ`` (default: this process' own). An empty variable counts as unset.

        A client's backend ``options``, by the backend's field names, take precedence.
        """
        chosen = {field: (options or {}).get(name) for field, name in _OPTIONS.items()}
        return read_settings(cls, cls.name_variables(), environ, given=chosen)
