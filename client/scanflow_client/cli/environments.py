"""Commands on the environment of an application, where a backend has one apart from runs: apply, clean."""

from __future__ import annotations

from typing import Annotated

import typer
from typer import Option

from scanflow_client.cli.options import JsonOption, TargetArgument, settings
from scanflow_client.cli.output import respond


def apply(
    target: TargetArgument = None,
    force: Annotated[bool, Option("--force", help="Set back what others changed in it, too.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Make an application's environment on a cluster, or bring it to what is described now. Runs do it, too."""
    from scanflow.app.quantities import counted
    from scanflow.deployer import EmbeddedDeployer
    from scanflow.loading import load_application

    app, _, _ = load_application(target)
    found = EmbeddedDeployer(settings()).environments(app).ensure(app, force=force)
    state = f"{counted(len(found.changed), 'object')} made or changed" if found.changed else "nothing was to be changed"
    tracker = f" Tracker: {found.tracker_uri}" if found.tracker_uri else ""
    kept = [f"  left as another one set it: {one}" for one in found.kept]
    respond(
        found, as_json, lambda: [*(f"  {one}" for one in found.changed), *kept, f"{found.namespace}: {state}.{tracker}"]
    )


def clean(
    target: TargetArgument = None,
    yes: Annotated[bool, Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Remove an application's environment from a cluster: runs, services, agents, and the data of its claims."""
    from scanflow.deployer import EmbeddedDeployer
    from scanflow.loading import load_application

    app, _, _ = load_application(target)
    environments = EmbeddedDeployer(settings()).environments(app)
    if not yes:
        typer.confirm(f"Remove all that {app.name!r} of team {app.team!r} runs, serves and keeps there?", abort=True)
    found = environments.delete(app)
    gone = "is gone" if found.namespace_removed else "stays"
    left = [f"  left there: {one}" for one in found.left]
    respond(
        found, as_json, lambda: [*(f"  removed {one}" for one in found.removed), *left, f"{found.namespace} {gone}."]
    )
