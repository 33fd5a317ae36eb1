"""What IPython shows of applications, records and lists of them: what the command line prints, as text and as HTML.

Only this module and ``notebook_progress`` know IPython. See docs/decisions/094.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from IPython.core.formatters import DisplayFormatter
    from IPython.lib.pretty import RepresentationPrinter
    from markupsafe import Markup

    from scanflow.app.application import Application
    from scanflow.app.workflow import Workflow
    from scanflow.backends.run_records import RunRecord
    from scanflow_client.formatting.text_table import Screen
    from scanflow_client.listing import Listing
    from scanflow_client.run_handle import RunHandle

_FORMATTING = "scanflow_client.formatting."
_DEFAULT_SIZE = (120, 24)  # where there is no terminal

SCREENS: Mapping[str, str | Callable[[Any], Screen]] = {
    "scanflow.agent.agent_records:Action": lambda action: [resolve_screen("agent_text:format_action")(action)],
    "scanflow.agent.agent_records:ActionExplanation": lambda explanation: explanation.lines,
    "scanflow.agent.agent_records:AgentView": lambda agent: resolve_screen("agent_text:format_agents")(
        [agent], detailed=True
    ),
    "scanflow.agent.agent_records:Event": lambda event: [resolve_screen("control_plane_text:format_event")(event)],
    "scanflow.agent.strategy:Strategy": "definition_text:format_strategy",
    "scanflow.app.agent:Agent": "definition_text:format_agent",
    "scanflow.app.application:Application": "definition_text:format_application",
    "scanflow.app.model:Model": "definition_text:format_definition",
    "scanflow.app.plan:Plan": "run_text:format_plan",
    "scanflow.app.workflow:Workflow": "definition_text:format_workflow",
    "scanflow.backends.job_times:JobTimes": lambda job: resolve_screen("job_text:format_jobs")([job]),
    "scanflow.backends.run_records:RunRecord": "run_text:format_run_in_notebook",
    "scanflow.backends.run_records:TaskRecord": "run_text:format_task_record",
    "scanflow.backends.service_records:Explanation": "service_text:format_explanation",
    "scanflow.backends.service_records:InstanceRecord": lambda own: resolve_screen("service_text:format_instances")(
        [own]
    ),
    "scanflow.backends.service_records:RevisionRecord": lambda own: [
        resolve_screen("service_text:format_revisions")([own])
    ],
    "scanflow.backends.service_records:ServiceRecord": "service_text:format_service",
    "scanflow.drift.two_sample:Comparison": "drift_text:format_comparison",
    "scanflow.placement.mpi.job_plan:MPIPlan": lambda plan: [*plan.reasons, *plan.lines()],
    "scanflow.reports.model_history:VersionHistory": lambda version: resolve_screen("model_text:format_versions")(
        [version]
    ),
    "scanflow_client.agent_replay:Replay": "agent_text:format_replay",
    "scanflow_client.client:Client": lambda client: [str(client)],
    "scanflow_client.control_status:ControlStatus": "control_plane_text:format_server_status",
    "scanflow_client.listing:Listing": "scanflow_client.notebook:format_listing",
    "scanflow_client.load_report:LoadReport": "scanflow_client.load_report:format_load",
    "scanflow.agent.model_changer:ModelChange": "scanflow_client.model_client:format_model_change",
    "scanflow_client.run_handle:RunHandle": "scanflow_client.notebook:format_run_handle",
    "scanflow_client.tuning_report:TuningReport": "scanflow_client.tuning_report:format_tuning",
}
"""The function that makes a screen, by the type of what is shown, or by a base class of it."""

LISTS: Mapping[str, str] = {
    "scanflow.agent.agent_records:Action": "agent_text:format_actions",
    "scanflow.agent.agent_records:Event": "control_plane_text:format_events",
    "scanflow.backends.run_records:RunRecord": "run_text:format_runs",
    "scanflow.backends.run_records:TaskRecord": "run_text:format_tasks",
    "scanflow.backends.service_records:InstanceRecord": "service_text:format_instances",
    "scanflow.backends.service_records:RevisionRecord": "service_text:format_revisions",
    "scanflow.backends.service_records:ServiceRecord": "service_text:format_services",
    "scanflow.reports.model_history:VersionHistory": "model_text:format_versions",
    "scanflow_client.run_handle:RunHandle": "run_text:format_runs",
}
"""The function that makes a screen of a plain list or tuple of such: ``run.tasks``, ``[r for r in client.runs()]``."""

DRAWINGS: Mapping[str, str] = {
    "scanflow.app.application:Application": "scanflow_client.notebook:draw_parts",
    "scanflow.app.workflow:Workflow": "scanflow_client.notebook:draw_steps",
    "scanflow.backends.run_records:RunRecord": "scanflow_client.notebook:draw_run_steps",
    "scanflow.backends.service_records:ServiceRecord": "scanflow.backends.service_drawing:draw_service",
    "scanflow_client.run_handle:RunHandle": "scanflow_client.notebook:draw_run_handle",
    "scanflow_client.load_report:LoadReport": "scanflow_client.load_report:draw_load",
    "scanflow_client.tuning_report:TuningReport": "scanflow_client.tuning_report:draw_tuning",
}
"""The function that draws what is shown below it, by its captions, likewise."""

MAX_GRAPHS = 8
"""Of the workflows of an application, the first."""


_shown: list[tuple[str, int]] = []
"""The last run that was shown to its end, and the number of the cell that did so."""


def register() -> None:
    """Have IPython show our types so from now on; nothing outside of IPython."""
    if "IPython" not in sys.modules:
        return
    from IPython import get_ipython

    shell = get_ipython()
    if shell is not None and shell.display_formatter is not None:
        register_with(shell.display_formatter)


def register_with(formatter: DisplayFormatter) -> None:
    """Add our types to a formatter of IPython, by their names: nothing is imported for it."""
    for name, function in SCREENS.items():
        module, _, type_name = name.partition(":")
        draw = DRAWINGS.get(name)
        formatter.formatters["text/plain"].for_type_by_name(module, type_name, _make_printer(function))
        formatter.formatters["text/html"].for_type_by_name(module, type_name, _make_renderer(function, draw))
    for kind in (list, tuple):
        text = formatter.formatters["text/plain"]
        before = text.for_type(kind)
        if not isinstance(before, _SequencePrinter):
            text.for_type(kind, _SequencePrinter(before))
        formatter.formatters["text/html"].for_type(kind, _render_sequence)


def format_listing(listing: Listing[Any]) -> Screen:
    """Return the screen of a list: that of the command that lists the same."""
    if not listing.shown_by:
        return [repr(list(listing))]
    return _as_screen(resolve_screen(listing.shown_by)(listing, **listing.options))


def _make_printer(function: str | Callable[[Any], Screen]) -> Callable[[Any, RepresentationPrinter, bool], None]:
    def print_text(value: Any, printer: RepresentationPrinter, cycle: bool) -> None:  # noqa: ARG001  what IPython calls
        if len(printer.stack) > 1:  # inside a list or a mapping
            printer.text(repr(value))
        else:
            from scanflow_client.formatting.text_table import format_lines

            width = shutil.get_terminal_size(_DEFAULT_SIZE).columns
            printer.text("\n".join(format_lines(_make_screen(function, value), width)))

    return print_text


def _make_renderer(function: str | Callable[[Any], Screen], draw: str | None) -> Callable[[Any], str]:
    def render(value: Any) -> str:
        from scanflow_client.formatting.screen_html import render_screen

        drawings = {} if draw is None else _as_drawings(resolve_screen(draw)(value))
        return render_screen(_make_screen(function, value), links=_list_links(value), drawings=drawings)

    return render


class _SequencePrinter:
    """Prints a list or tuple of one of our types as a table, and others as before."""

    def __init__(self, before: Callable[..., None]) -> None:
        self._before = before

    def __call__(self, value: Sequence[Any], printer: RepresentationPrinter, cycle: bool) -> None:
        function = _find_list_function(value)
        (self._before if function is None else _make_printer(function))(value, printer, cycle)


def _render_sequence(value: Sequence[Any]) -> str | None:
    """Return a list or tuple of one of our types as HTML; None: IPython shows its text."""
    from scanflow_client.formatting.screen_html import render_screen

    if (function := _find_list_function(value)) is None:
        return None
    links = {name: address for item in value for name, address in _list_links(item).items()}
    return render_screen(_make_screen(function, value), links=links)


def _find_list_function(value: Sequence[Any]) -> str | None:
    kind = type(value[0]) if value and type(value) in {list, tuple} else None
    function = None if kind is None else LISTS.get(f"{kind.__module__}:{kind.__qualname__}")
    return function if function is not None and all(type(item) is kind for item in value) else None


def _make_screen(function: str | Callable[[Any], Screen], value: Any) -> Screen:
    from scanflow_client.formatting.text import keep_times

    with keep_times():
        return _as_screen((resolve_screen(function) if isinstance(function, str) else function)(value))


def _as_screen(screen: Any) -> Screen:
    return [screen] if isinstance(screen, str) or hasattr(screen, "headers") else screen


def resolve_screen(name: str) -> Callable[..., Any]:
    """Return the function of an address: ``run_text:format_runs`` is one of :mod:`scanflow_client.formatting`."""
    function: Callable[..., Any] = resolve_name(name if name.startswith("scanflow") else f"{_FORMATTING}{name}")
    return function


def was_just_shown(run: str) -> bool:
    """Return whether the cell that is executed has shown a run to its end, so that its value need not show it again."""
    from IPython import get_ipython

    shell = get_ipython()
    return shell is not None and (run, shell.execution_count) in _shown


def remember_shown(run: str) -> None:
    from IPython import get_ipython

    shell = get_ipython()
    _shown[:] = [] if shell is None else [(run, shell.execution_count)]


def draw_parts(app: Application) -> Mapping[str, Markup]:
    """Return what its parts have to do with each other, and the graphs of the workflows that have several nodes."""
    from scanflow.app.application_drawing import draw_application

    parts = {"": draw_application(app)} if len([*app.workflows, *app.agents]) > 1 else {}
    graphs = [(f"{flow.name} ({flow.type})", graph) for flow in app.workflows for graph in draw_steps(flow).values()]
    return parts | dict(graphs[:MAX_GRAPHS])


def draw_steps(workflow: Workflow) -> Mapping[str, Markup]:
    """Return the graph of a workflow; of a single node there is nothing to draw."""
    from scanflow.app.workflow_drawing import draw_workflow

    return {"": draw_workflow(workflow)} if len(workflow.nodes) > 1 else {}


def draw_run_steps(run: RunRecord) -> Mapping[str, Markup]:
    """Return the graph of a run with the states of its steps; of a single step there is nothing to draw."""
    from scanflow.backends.run_drawing import draw_run

    return {"": draw_run(run)} if len({task.step for task in run.tasks}) > 1 else {}


def draw_run_handle(run: RunHandle) -> Mapping[str, Markup]:
    return {} if was_just_shown(run.name) else draw_run_steps(run.record)


def _as_drawings(drawn: Markup | Mapping[str, Markup]) -> Mapping[str, Markup]:
    return drawn if isinstance(drawn, Mapping) else {"": drawn}


def _list_links(value: Any) -> Mapping[str, str]:
    return getattr(value, "links", None) or {}


def format_run_handle(run: RunHandle) -> Screen:
    """Return the screen of a run; one line, where the cell has shown its table just before."""
    return [repr(run)] if was_just_shown(run.name) else _make_screen("run_text:format_run_in_notebook", run.record)
