"""Settings of builds, from the environment and from options."""

from __future__ import annotations

import pytest

from scanflow.errors import InvalidError
from scanflow.images.build_settings import ImageSettings


def test_settings_are_read_from_the_environment_and_options_come_first() -> None:
    environ = {
        "SCANFLOW_IMAGES_BUILDER": "podman", "SCANFLOW_IMAGES_INSECURE": "1", "SCANFLOW_IMAGES_OPTIONS": "",
        "SCANFLOW_KUBERNETES_REGISTRY": "r:5", "SCANFLOW_KUBERNETES_IMAGE": "r:5/base:1",
    }  # fmt: skip
    settings = ImageSettings.from_environment(environ)
    assert settings == ImageSettings(builder="podman", insecure=True, registry="r:5", base="r:5/base:1")
    assert ImageSettings.from_environment(environ, options={"image": "other:1", "context": "lab"}).base == "other:1"
    changed = settings.with_overrides({"builder": "docker", "registry": None, "insecure": None})
    assert (changed.builder, changed.registry, changed.insecure) == ("docker", "r:5", True)


def test_a_setting_that_cannot_be_read_is_named() -> None:
    with pytest.raises(InvalidError, match="SCANFLOW_IMAGES_INSECURE='maybe'"):
        ImageSettings.from_environment({"SCANFLOW_IMAGES_INSECURE": "maybe"})
