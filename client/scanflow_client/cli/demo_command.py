"""The command ``demo``: train, serve, and watch the agents close the loop."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

from typer import Option

from scanflow.errors import UsageError
from scanflow_client.cli.command_options import (
    JsonOption,
    ParameterOption,
    load_settings,
    open_client,
    open_deployer,
    split_parameters,
)
from scanflow_client.cli.command_output import choose_progress_stream, print_json, say


def demo(
    data: Annotated[
        str, Option("--data", metavar="NAME|FILE", help="digits (comes with scikit-learn), mnist, or an .npz file.")
    ] = "digits",
    drifted: Annotated[
        Path | None, Option("--drifted", metavar="FILE", help="Drifted digits, such as MNIST-C's. Default: generated.")
    ] = None,
    report: Annotated[
        Path | None, Option("--report", metavar="FILE", help="The report's file. Default: in the home folder.")
    ] = None,
    parameter: ParameterOption = None,
    keep: Annotated[bool, Option("--keep", help="Keep the service and the agents running at the end.")] = False,
    open_pages: Annotated[
        bool, Option("--open", help="Open the server's pages in a browser, and at the end the report.")
    ] = False,
    backend: Annotated[
        str | None,
        Option("--backend", metavar="NAME", help="Where to run the demo: kubernetes runs it in your cluster."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Train and serve a digits model; agents retrain it on drift.

    The demo sends drifted digits until the agents have retrained the model and promoted the better version.

    Examples:
        scanflow demo
        scanflow demo --data mnist --open
        scanflow demo --keep --report demo.html
    """
    import webbrowser

    from scanflow.deployer import RunRequest
    from scanflow.deployer.remote_home import find_server_address
    from scanflow_client.cli.run_commands import watch
    from scanflow_client.dashboard_browser import has_browser, open_dashboard
    from scanflow_client.demo.browser_pages import BrowserPages
    from scanflow_client.demo.demo_application import list_next_commands, load_demo
    from scanflow_client.demo.loop import format_loop, render_report
    from scanflow_client.demo.session import DemoSession, provide_control_plane

    def report_progress(text: str) -> None:
        say(text, err=as_json)

    settings, client = load_settings(), open_client()
    if backend is not None:
        settings = settings.model_copy(update={"backend": backend})
    if settings.backend == "kubernetes" and settings.url is None:
        if as_json or keep or open_pages or parameter or drifted is not None or data != "digits":
            raise UsageError("On a cluster the demo accepts only --report: it always runs the same way, and cleans up.")
        from scanflow.deployer.embedded import open_backend
        from scanflow_client.demo.demo_application import load_small_demo
        from scanflow_client.demo.in_cluster import run_in_cluster

        page = report or settings.home / "reports" / "demo-on-kubernetes.html"
        run_in_cluster(open_backend(settings), load_small_demo()[0], page.expanduser().absolute(), say)
        return
    application, path, parameters, corrupted = load_demo(data, drifted)
    report_progress(f"The demo is an application like yours: {path}")
    with provide_control_plane(settings, client, report_progress, keep=keep):
        address = find_server_address(settings) or ""
        log_in = partial(open_dashboard, client.server, settings.home, "/", webbrowser.open)
        pages = BrowserPages(address, report_progress, is_open=open_pages and has_browser(), log_in=log_in)
        session = DemoSession(open_deployer(), client, application, path, say=report_progress)
        session.check_free()  # before the training, which takes longest
        pages.open_first()
        request = RunRequest(
            application, "mnist-wf", parameters=parameters, texts=split_parameters(parameter), source=path
        )
        record = watch(session.deployer, request, as_json, last=False)
        stream = choose_progress_stream(as_json)
        loop = session.close_the_loop(corrupted, keep=keep, stream=stream, follow=pages.follow)
        home = settings.home.expanduser().absolute()
        written = (report or home / "reports" / f"{record.name}.html").expanduser().absolute()
        written.parent.mkdir(parents=True, exist_ok=True)
        written.write_text(render_report(client, application, loop), encoding="utf-8")
        pages.open_report(written)
        if as_json:
            print_json({"run": record, "loop": loop.as_json(), "report": str(written)})
        else:
            say(*format_loop(loop, written), *list_next_commands(record, path, home, keeps_running=keep))
