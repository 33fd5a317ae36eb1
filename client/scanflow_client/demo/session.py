"""One session of the demo: the control plane, the service, the agents and the traffic; started, and stopped again."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

from scanflow.app.application import Application
from scanflow.deployer import Deployer
from scanflow.settings import Settings
from scanflow.transport import ServerClient
from scanflow_client import control_plane
from scanflow_client.demo import loop
from scanflow_client.demo.application import traffic_program
from scanflow_client.demo.preflight import check_free, delete_service, stop_agents, wanted_agents
from scanflow_client.demo.screen import screen_on
from scanflow_client.demo.traffic import TrafficProgram


@contextmanager
def temporary_control_plane(
    settings: Settings, server: Callable[[], ServerClient], say: Callable[[str], None], *, keep: bool
) -> Iterator[None]:
    """Have the control plane up inside; stop it afterwards if this started it and nothing else runs on it."""
    if settings.url is not None:  # it is not on this machine, or not ours to start
        yield
        return
    raised = control_plane.up(settings)
    stops = raised.server and not keep
    say(f"The control plane is up: {raised.up.server.url}" + ("" if raised.server else " (it was before)"))
    try:
        if stops and (others := wanted_agents(server())):
            stops = False
            names = ", ".join(f"{one['name']} of {one['app']}" for one in others)
            say(f"It stays up, as {names} should run on it. Stop all: scanflow down")
        yield
    finally:
        if stops and (done := control_plane.down(settings)).running:
            print("\n".join(done.left), file=sys.stderr)


def close_the_loop(
    where: Deployer,
    server: ServerClient,
    application: Application,
    path: Path,
    drifted: Path | None,
    *,
    keep: bool,
    observer: AbstractContextManager[Any],
    say: Callable[[str], None],
    quiet: bool,
) -> loop.LoopOutcome:
    """Serve the champion, start the agents, send digits, and print events until a better model is promoted.

    What this started is stopped at the end, also after an error, unless ``keep``; what was there before is not.
    """
    check_free(where, server, application, loop.SERVICE)
    with ExitStack() as stack:
        if not keep:
            stack.callback(delete_service, where, application, loop.SERVICE)
        with observer as observe:
            served = where.deploy(application, loop.SERVICE, source=path, observe=observe)
        if not keep:
            stack.callback(stop_agents, server, application, [one.name for one in application.agents])
        names = loop.start_agents(server, application, path)
        say(f"From here on, the agents act by themselves: {', '.join(names)}")
        program, arguments = traffic_program(path, served, drifted)
        traffic = stack.enter_context(TrafficProgram(program, *arguments, log=Path(served.folder) / "demo-traffic.log"))
        with screen_on(None if quiet else sys.stdout) as screen:
            return loop.run_loop(
                server,
                application,
                traffic,
                models=lambda: {
                    one.id: next(iter(one.models.values()), "?") for one in where.service(loop.SERVICE).revisions
                },
                tell=screen.show,
                look=screen.look,
            )
