"""The images of an application, from its file to a registry."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from scanflow.app.application import Application
from scanflow.app.workflow import Workflow
from scanflow.deployer.embedded import open_models
from scanflow.images.build_settings import ImageSettings
from scanflow.images.builders import Say, get_builder
from scanflow.images.building import ImageRecord, build_images
from scanflow.images.image_records import BuiltImages
from scanflow.images.recipes import PlannedImage, plan_images
from scanflow.settings import Settings


def list_images(
    app: Application, workflows: Sequence[Workflow], settings: Settings, images: ImageSettings
) -> list[PlannedImage]:
    """Return the images of workflows. Registered models are fetched, to read their requirements."""
    home = settings.home.expanduser().absolute()
    uri = None if app.tracker is None else app.tracker.uri
    models = open_models(home, uri or settings.tracker_uri)
    return plan_images(app, workflows, images.base, lambda model: Path(models.fetch(model).path))


def build_application(
    app: Application,
    workflows: Sequence[Workflow],
    settings: Settings,
    images: ImageSettings,
    *,
    push: bool,
    again: bool,
    say: Say,
) -> list[ImageRecord]:
    """Build the missing images of workflows, and push them if requested."""
    return build_images(
        Path(app.app_dir),
        list_images(app, workflows, settings, images),
        builder=lambda: get_builder(images.builder, insecure=images.insecure, options=images.options),
        built=BuiltImages(settings.home.expanduser().absolute()),
        registry=images.registry,
        push=push,
        again=again,
        say=say,
    )
