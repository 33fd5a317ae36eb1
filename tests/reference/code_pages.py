"""Pages on what is called: commands, parameters of templates, triggers, primitives, routes, Python modules."""

from __future__ import annotations

import importlib
import inspect
import re
import tempfile
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from typer import Context

from scanflow.agent.primitives import CATALOGUE
from scanflow.app import triggers
from scanflow.settings import Settings
from scanflow_agents.templates.template_options import Options
from scanflow_server.app import BASE, create_app
from scanflow_server.server_context import make_context
from scanflow_server.server_settings import ServerSettings
from scanflow_serving.endpoints import ENDPOINTS
from tests.command_tree import is_group, iterate_commands, load_command_tree
from tests.grammar import CHECKOUT
from tests.reference.docstrings import (
    format_annotation,
    format_default,
    list_fields,
    read_arguments,
    read_field_docs,
    read_prose,
    read_summary,
)
from tests.reference.markdown import Page, format_docstring

TRIGGERS = ("every", "at", "cron", "on_call", "on_event", "all_of", "any_of")
PROTO = CHECKOUT / "scanflow" / "protos" / "open_inference_grpc.proto"


def build_commands_page() -> Page:
    page = Page("Commands")
    page.add(
        "Every command and option of `scanflow`. `scanflow COMMAND --help` (or `-h`) shows the same. Commands end "
        "with one of the [exit codes](exit-codes.md). [The command line](../command-line.md) explains what they have "
        "in common."
    )
    commands = list(iterate_commands(load_command_tree(), ("scanflow",)))
    page.add_table(
        ["command", "what it does"],
        [
            (f"[`{name}`](#{name.replace(' ', '-')})", (command.help or "").strip().partition("\n\n")[0])
            for name, command in commands
        ],
    )
    for name, command in commands:
        page.add(f"## {name}")
        page.describe(name, (command.help or "").strip().replace("<", "\\<"))
        context = Context(command, info_name=name)
        page.add(f"```text\n{command.get_usage(context).removeprefix('Usage: ')}\n```")
        parameters = [parameter for parameter in command.params if not parameter.hidden and parameter.name != "help"]
        if parameters:
            page.add_table(
                ["argument or option", "default", "meaning"],
                [
                    (_format_parameter(parameter, context), _format_parameter_default(parameter), parameter.help or "")
                    for parameter in parameters
                ],
            )
        if command.epilog and not is_group(command):
            page.add("Examples:", f"```bash\n{command.epilog.strip()}\n```")
    return page


def _format_parameter(parameter: Any, context: Context) -> str:
    names, _ = parameter.get_help_record(context)
    return f"`{names.removesuffix(' <str>') if parameter.param_type_name == 'argument' else names}`"


def _format_parameter_default(parameter: Any) -> str:
    default = parameter.default
    if callable(default) or default in (None, False, ()):
        return "required" if parameter.required else ""
    return "on" if default is True else f"`{default}`"


def list_templates() -> dict[str, type[Options]]:
    """Return the options of each template that ships."""
    templates = {}
    for entry in sorted(entry_points(group="scanflow.templates"), key=lambda entry: entry.name):
        module = importlib.import_module(entry.module)
        templates[entry.name] = getattr(module, f"{entry.name.capitalize()}Options")
    return templates


def build_templates_page() -> Page:
    page = Page("Parameters of template agents")
    page.add(
        "The parameters of [agents](../agents.md) that have a template: "
        '`sf.Agent(name="checker", template="checker", parameters={"interval_s": 30})`. A name that the template does '
        "not have is an error when the agent is loaded."
    )
    for template, options in list_templates().items():
        page.add(f"## {template}")
        page.describe(template, read_summary(importlib.import_module(options.__module__)))
        docs = read_field_docs(options)
        page.add_table(
            ["parameter", "type", "default", "meaning"],
            [
                (f"`{name}`", f"`{format_annotation(field.annotation)}`", format_default(field), docs.get(name, ""))
                for name, field in list_fields(options).items()
            ],
        )
    return page


def build_triggers_page() -> Page:
    page = Page("Triggers")
    page.add(
        "A trigger says when a [sensor](../agents.md) fires: `@sensor(sf.every(hours=1))`. Times are in seconds "
        "unless the name says otherwise."
    )
    for name in TRIGGERS:
        function = getattr(triggers, name)
        page.add(f"## sf.{name}", f"```python\nsf.{name}{format_signature(function)}\n```")
        page.describe(name, read_prose(function))
        _add_arguments(page, function)
    return page


def format_signature(function: Any) -> str:
    parameters = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in inspect.signature(function).parameters.values()
    ]
    return str(inspect.Signature(parameters))


def _add_arguments(page: Page, function: Any) -> None:
    docs = read_arguments(inspect.getdoc(function) or "")
    parameters = inspect.signature(function).parameters
    if parameters:
        page.add_table(
            ["argument", "type", "meaning"],
            [
                (f"`{name}`", f"`{format_annotation(parameter.annotation)}`", docs.get(name, ""))
                for name, parameter in parameters.items()
            ],
        )


def build_primitives_page() -> Page:
    page = Page("Primitives")
    page.add(
        "A strategy of an [agent](../agents.md) requests a primitive: "
        '`primitives.run_workflow("training", retrain=True)`, with `from scanflow.agent import primitives`. '
        "`scanflow strategies primitives` lists them, with those of installed packages.",
        "A reversible primitive is undone by a guard, or by `scanflow approve ACTION --revert`.",
    )
    for row in CATALOGUE:
        page.add(
            f"## {row.name}" + (f" ({row.kind})" if sum(other.name == row.name for other in CATALOGUE) > 1 else "")
        )
        page.describe(row.name, format_docstring(row.what))
        fields = ", ".join(f"`{field}`" for field in row.fields)
        page.add(
            f"For {row.kind} workflows. It writes {fields} of `{row.target}`, and is "
            f"{'reversible' if row.inverse else 'not reversible'}."
        )
        page.add_table(
            ["argument", "type", "meaning"],
            [
                (f"`{parameter.name}`", f"{parameter.type}{', required' * parameter.required}", parameter.what)
                for parameter in row.parameters
            ],
        )
    return page


def build_openapi() -> dict[str, Any]:
    """Return the description of the server's API."""
    with tempfile.TemporaryDirectory() as folder:
        settings = ServerSettings(library=Settings(home=Path(folder)), name="reference")
        settings.folder.mkdir(parents=True)
        context = make_context(settings)
        try:
            return create_app(context, control=False).openapi()
        finally:
            context.store.close()


def build_rest_page() -> Page:
    page = Page("REST")
    page.add(
        "## The server",
        f"The API of the [control plane](../control-plane.md). A running server describes it at `{BASE}/openapi.json` "
        "(OpenAPI), with the schema of each body; the built site has the same document as `openapi.json` beside "
        "this page. Requests have the header `Authorization: Bearer TOKEN`. Errors are problem documents (RFC 9457).",
    )
    groups: dict[str, list[tuple[str, str, str]]] = {}
    for path, methods in build_openapi()["paths"].items():
        for method, route in methods.items():
            text = str(route.get("description", "")).partition("\n\n")[0]
            row = (f"`{method.upper()} {path}`", _format_query(route), format_docstring(text))
            groups.setdefault(route["tags"][0], []).append(row)
    for tag, rows in groups.items():
        page.add(f"### {tag.capitalize()}")
        page.add_table(["route", "query", "what it does"], rows)
    page.add(
        "## Services",
        "Each [service](../inference.md) speaks the [Open Inference "
        "Protocol](https://github.com/kserve/open-inference-protocol) (V2), and Seldon's protocol (V1). `{model}` is "
        "the name of the service, or of one of its nodes. `{version}` is a revision of the service, or a version of "
        "the node's model. Each `GET` route answers `HEAD`, too.",
    )
    page.add_table(
        ["route", "protocol", "what it does"],
        [(f"`{route.method} {route.path}`", route.protocol, route.meaning) for route in ENDPOINTS],
    )
    calls = re.findall(r"rpc (\w+)\((\w+)\)", PROTO.read_text(encoding="utf-8"))
    page.add(
        "### gRPC",
        "The same protocol over gRPC is the service `inference.GRPCInferenceService` of "
        f"`scanflow/protos/{PROTO.name}`, with the calls {', '.join(f'`{name}`' for name, _ in calls)}. Health "
        "checks are those of `grpc.health.v1`.",
    )
    return page


def _format_query(route: Mapping[str, Any]) -> str:
    names = [parameter["name"] for parameter in route.get("parameters", ()) if parameter["in"] == "query"]
    return ", ".join(f"`{name}`" for name in names)
