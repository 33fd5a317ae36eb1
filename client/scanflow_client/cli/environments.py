"""Commands on an application's environment on a backend that has environments: apply, clean."""

from __future__ import annotations

from typing import Annotated

import typer
from typer import Option

from scanflow_client.cli.options import JsonOption, TargetArgument, load_settings
from scanflow_client.cli.output import respond


def apply(
    target: TargetArgument = None,
    force: Annotated[bool, Option("--force", help="Set back what others changed in it, too.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Make an application's environment on a cluster, or bring it to what is described now. Runs do it, too."""
    from scanflow.app.quantities import format_count
    from scanflow.deployer import EmbeddedDeployer
    from scanflow.loading import load_application

    app, _, _ = load_application(target)
    ensured = EmbeddedDeployer(load_settings()).environments(app).ensure(app, force=force)
    state = (
        f"{format_count(len(ensured.changed), 'object')} made or changed"
        if ensured.changed
        else "nothing was to be changed"
    )
    tracker = f" Tracker: {ensured.tracker_uri}" if ensured.tracker_uri else ""
    left_alone = [f"  left as another one set it: {entry}" for entry in ensured.kept]
    respond(
        ensured,
        as_json,
        lambda: [*(f"  {entry}" for entry in ensured.changed), *left_alone, f"{ensured.namespace}: {state}.{tracker}"],
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
    environments = EmbeddedDeployer(load_settings()).environments(app)
    if not yes:
        typer.confirm(f"Remove all that {app.name!r} of team {app.team!r} runs, serves and keeps there?", abort=True)
    deletion = environments.delete(app)
    gone = "is gone" if deletion.namespace_removed else "stays"
    remaining = [f"  left there: {entry}" for entry in deletion.left]
    respond(
        deletion,
        as_json,
        lambda: [*(f"  removed {entry}" for entry in deletion.removed), *remaining, f"{deletion.namespace} {gone}."],
    )
