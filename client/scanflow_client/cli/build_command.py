"""``scanflow build``: container images of an application, for backends that run containers."""

from __future__ import annotations

from typing import Annotated

from typer import Option

from scanflow_client.cli.command_options import JsonOption, TargetArgument, load_settings
from scanflow_client.cli.command_output import respond, say


def build(
    target: TargetArgument = None,
    push: Annotated[bool, Option("--push", help="Push the images that the registry does not have.")] = False,
    builder: Annotated[
        str | None, Option("--builder", metavar="NAME", help="buildah, podman or docker. Default: the first found.")
    ] = None,
    registry: Annotated[
        str | None, Option("--registry", metavar="HOST[:PORT][/PROJECT]", help="The registry to push images to.")
    ] = None,
    base: Annotated[str | None, Option("--base", metavar="IMAGE", help="The base image.")] = None,
    insecure: Annotated[bool, Option("--insecure", help="Connect to the registry over plain HTTP.")] = False,
    again: Annotated[bool, Option("--again", help="Rebuild unchanged images, too.")] = False,
    print_: Annotated[bool, Option("--print", help="Print the Dockerfiles without building images.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Build the container images of an application.

    An image contains the code, its requirements and those of registered models. Unchanged images are not rebuilt.
    Once an image is built, steps and services run in it.

    Examples:
        scanflow build app.py --print
        scanflow build app.py --push --registry registry.example.com/team
    """
    from scanflow.application_loading import load_application
    from scanflow.deployer.application_images import build_application, list_images
    from scanflow.images.build_settings import ImageSettings
    from scanflow_client.formatting.image_text import format_build, format_dockerfiles

    application, _, chosen = load_application(target)
    workflows = [application.workflow(chosen)] if chosen is not None else list(application.workflows)
    overrides = {"builder": builder, "registry": registry, "base": base, "insecure": insecure or None}
    images = ImageSettings.from_environment(options=load_settings().backend_options).with_overrides(overrides)
    if print_:
        planned = list_images(application, workflows, load_settings(), images)
        respond([image.recipe for image in planned], as_json, lambda: format_dockerfiles(planned, images.registry))
        return
    records = build_application(
        application, workflows, load_settings(), images, push=push, again=again, say=lambda line: say(line, err=True)
    )
    respond(records, as_json, lambda: format_build(records, target))
