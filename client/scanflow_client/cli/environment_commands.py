"""Commands on an application's environment on a backend that has environments: apply, clean."""

from __future__ import annotations

from typing import Annotated

import typer
from typer import Option

from scanflow_client.cli.command_options import JsonOption, TargetArgument, load_settings
from scanflow_client.cli.command_output import respond


def apply(
    target: TargetArgument = None,
    force: Annotated[bool, Option("--force", help="Also overwrite fields that other clients changed.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Create or update an application's environment on a cluster. Runs do so, too.

    Examples:
        scanflow --backend kubernetes apply app.py
    """
    from scanflow.app.plain_secrets import check_no_plain_secrets
    from scanflow.app.quantities import format_count
    from scanflow.application_loading import load_application
    from scanflow.deployer import EmbeddedDeployer

    app, _, _ = load_application(target)
    check_no_plain_secrets(app)
    ensured = EmbeddedDeployer(load_settings()).environments(app).ensure(app, force=force)
    state = (
        f"{format_count(len(ensured.changed), 'object')} created or changed" if ensured.changed else "nothing changed"
    )
    tracker = f" Tracker: {ensured.tracker_uri}" if ensured.tracker_uri else ""
    left_alone = [f"  kept as another client set it: {entry}" for entry in ensured.kept]
    respond(
        ensured,
        as_json,
        lambda: [*(f"  {entry}" for entry in ensured.changed), *left_alone, f"{ensured.namespace}: {state}.{tracker}"],
    )


def clean(
    target: TargetArgument = None,
    yes: Annotated[bool, Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Delete an application's environment from a cluster.

    This deletes its runs, services and agents, and the data in its volume claims.

    Examples:
        scanflow --backend kubernetes clean app.py --yes
    """
    from scanflow.application_loading import load_application
    from scanflow.deployer import EmbeddedDeployer

    app, _, _ = load_application(target)
    environments = EmbeddedDeployer(load_settings()).environments(app)
    if not yes:
        typer.confirm(
            f"Delete all runs, services, agents and data of {app.name!r} of team {app.team!r} there?", abort=True
        )
    deletion = environments.delete(app, tell=lambda sentence: typer.echo(sentence, err=True))
    gone = "is deleted" if deletion.namespace_removed else "is kept"
    remaining = [f"  kept {entry}" for entry in deletion.left]
    respond(
        deletion,
        as_json,
        lambda: [*(f"  removed {entry}" for entry in deletion.removed), *remaining, f"{deletion.namespace} {gone}."],
    )
