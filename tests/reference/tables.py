"""Pages that are tables: settings, events, metrics, exit codes, errors, chart values."""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from scanflow import errors
from scanflow.agent.event_types import EVENT_TYPES
from scanflow.backends.kubernetes.kubernetes_settings import KubernetesSettings
from scanflow.environment_variables import CONNECTION_VARIABLES, INTERNAL_VARIABLES, PROCESS_VARIABLES
from scanflow.images.build_settings import ImageSettings
from scanflow.settings import Settings
from scanflow_client.cli.exit_codes import EXIT_CODES
from scanflow_server import metrics
from scanflow_server.server_settings import ServerSettings
from scanflow_server.sign_in_settings import SignInSettings
from scanflow_serving.serving_metrics import CUSTOM, FAMILIES
from tests.grammar import CHECKOUT
from tests.reference.docstrings import format_variable_default, read_field_docs, read_summary
from tests.reference.markdown import Page, format_code

CHART = CHECKOUT / "deploy" / "helm" / "scanflow"

KINDS = {
    "array": "list",
    "boolean": "`true`, `false`",
    "integer": "whole number",
    "object": "mapping",
    "string": "text",
}

SETTINGS: Mapping[str, tuple[str, type[Any]]] = {
    "Every program": ("The command line, the Python client, the server and the agents read these.", Settings),
    "The server": ("`scanflow up` hands them on to the server that it starts.", ServerSettings),
    "Sign-in": ("Sign-in of people at the server by OpenID Connect. The first variable turns it on.", SignInSettings),
    "Kubernetes": ("The backend `kubernetes` reads these. See [Kubernetes](../kubernetes.md).", KubernetesSettings),
    "Images": ("`scanflow build` reads these. See [Container images](../images.md).", ImageSettings),
}


def build_settings_page() -> Page:
    page = Page("Settings")
    page.add(
        "All settings are environment variables. An empty variable counts as unset. A yes or no is written `1` or `0`."
    )
    seen = set[str]()
    for title, (text, model) in SETTINGS.items():
        page.add(f"## {title}", text)
        page.add_table(["variable", "default", "meaning"], _list_settings(model, seen))
    page.add("## Connections", "Every program reads these where it connects to servers and services.")
    page.add_table(["variable", "meaning"], [(f"`{name}`", text) for name, text in CONNECTION_VARIABLES.items()])
    page.add("## In steps, instances and MPI ranks", "Scanflow sets these for the processes that run your code.")
    page.add_table(["variable", "meaning"], [(f"`{name}`", text) for name, text in PROCESS_VARIABLES.items()])
    names = ", ".join(f"`{name}{'…' if name.endswith('_') else ''}`" for name in INTERNAL_VARIABLES)
    page.add(f"Scanflow's own processes hand these to one another. They are no settings: {names}.")
    return page


def list_setting_names() -> set[str]:
    fields = {name for _, model in SETTINGS.values() for name in model.name_variables().values()}
    return fields | {*CONNECTION_VARIABLES, *PROCESS_VARIABLES, *INTERNAL_VARIABLES}


def _list_settings(model: Any, seen: set[str]) -> Iterator[tuple[str, str, str]]:
    variables, docs = model.name_variables(), read_field_docs(model)
    for name, field in model.model_fields.items():
        if name not in variables or variables[name] in seen:
            continue
        seen.add(variables[name])
        text = re.sub(r"^`SCANFLOW_\w+`: ", "", docs.get(name, ""))
        text = re.sub(r"`(\w+)`", lambda match: f"`{variables.get(match[1], match[1])}`", text)
        computed = re.search(r" ?Default: (`[^`]+`|[^.]+)\.", text)
        default = format_variable_default(field) if computed is None else computed[1]
        text = text if computed is None else text.replace(computed[0], "")
        yield f"`{variables[name]}`", default, text[:1].upper() + text[1:]


def build_events_page() -> Page:
    page = Page("Events")
    page.add(
        "`scanflow events` lists events, `sf.on_event(TYPE)` fires on one, and [webhooks](../notifications.md) "
        "send some of them. Each has a number (`id`), a time (`at`, in seconds since 1970), a `type`, an application "
        "(`app`), a `subject` and `data`. The events of an agent have its name in their data, as `agent`. Agents and "
        "other programs may record events of types of their own."
    )
    page.add_table(
        ["type", "recorded by", "subject", "when"],
        [
            (f"[`{name}`](#{name.replace('.', '')})", event.recorded_by, format_code(event.subject), event.meaning)
            for name, event in EVENT_TYPES.items()
        ],
    )
    for name, event in EVENT_TYPES.items():
        page.add(f"## {name}", event.meaning)
        page.add_table(["data", "meaning"], [(f"`{key}`", text) for key, text in event.data.items()])
    return page


def build_metrics_page() -> Page:
    page = Page("Metrics")
    page.add(
        "Metrics are served at `/metrics` in the text format of Prometheus. A histogram has `_bucket` (with the "
        "label `le`), `_sum` and `_count`. Names that end in `_seconds` are in seconds.",
        "## Services",
        "Each instance of a service returns the sums over all instances. Every metric has the label `service`.",
    )
    head = ["metric", "kind", "labels", "meaning"]
    families = {**FAMILIES, "scanflow_custom_NAME": CUSTOM}
    page.add_table(
        head,
        [
            (_format_metric(name, family.kind), family.kind, _format_labels(family.labels), family.documentation)
            for name, family in families.items()
        ],
    )
    page.add("## The server", "The server returns these to callers that may see all teams.")
    page.add_table(
        head,
        [
            (_format_metric(name, kind), kind, _format_labels(labels), text)
            for name, kind, labels, text in list_server_metrics()
        ],
    )
    page.add("Agents have no metrics of their own: their states are in `scanflow agents` and in [events](events.md).")
    return page


def list_server_metrics() -> Iterator[tuple[str, str, list[str], str]]:
    """Yield name, kind, labels and meaning of each metric that the server's module makes."""
    for node in ast.walk(ast.parse(inspect.getsource(metrics))):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in {"Counter", "Gauge", "Histogram"}:
            name, text, *labels = (ast.literal_eval(part) for part in node.args)
            yield name, ast.unparse(node.func).lower(), labels[0] if labels else [], text


def _format_metric(name: str, kind: str) -> str:
    return f"`{name}_total`" if kind == "counter" else f"`{name}`"


def _format_labels(labels: Any) -> str:
    return ", ".join(map(format_code, labels))


def build_exit_codes_page() -> Page:
    page = Page("Exit codes")
    page.add("All commands of `scanflow` end with one of these codes.")
    page.add_table(
        ["code", "meaning", "more"],
        [(str(row.code), row.meaning[0].upper() + row.meaning[1:], row.remedy) for row in EXIT_CODES],
    )
    return page


def build_errors_page() -> Page:
    page = Page("Errors")
    page.add(
        "All errors are in `scanflow.errors`, in one tree. `ScanflowError` catches them all; a `UsageError` needs a "
        "change of your input, an `UnavailableError` may pass, an `InternalError` is a defect of Scanflow."
    )
    classes = [getattr(errors, name) for name in errors.__all__ if name.endswith("Error")]
    rows = sorted(classes, key=lambda cls: [base.__name__ for base in reversed(cls.__mro__) if base in classes])
    page.add_table(
        ["error", "is a", "meaning"],
        [
            (f"`{cls.__name__}`", ", ".join(f"`{base.__name__}`" for base in cls.__bases__), read_summary(cls))
            for cls in rows
        ],
    )
    return page


def build_chart_page() -> Page:
    page = Page("Chart values")
    page.add(
        "The values of the Helm chart `deploy/helm/scanflow`. See [Kubernetes](../kubernetes.md). `values.schema.json` "
        "validates them; an empty text means: not set."
    )
    page.add_table(["value", "default", "allowed", "meaning"], list_chart_values())
    return page


def list_chart_values() -> Iterator[tuple[str, str, str, str]]:
    """Yield name, default, allowed values and meaning of each value; its meaning is the comment above it."""
    text = (CHART / "values.yaml").read_text(encoding="utf-8")
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    root = yaml.compose(text)
    assert isinstance(root, yaml.MappingNode)
    for path, node in _list_leaves(root, ()):
        part = _find_schema(schema, path)
        default = text.splitlines()[node.start_mark.line][node.start_mark.column :] if node.start_mark else ""
        if isinstance(node, yaml.CollectionNode) and node.end_mark.line != node.start_mark.line:
            default = json.dumps(yaml.safe_load(yaml.serialize(node)))
        meaning = _read_comment(text.splitlines(), path, node)
        yield f"`{'.'.join(path)}`", "" if default == '""' else f"`{default}`", _format_allowed(part), meaning


def _list_leaves(node: yaml.MappingNode, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], yaml.Node]]:
    for key, value in node.value:
        here = (*path, key.value)
        if isinstance(value, yaml.MappingNode) and value.value and here[-1] != "resources":
            yield from _list_leaves(value, here)
        else:
            yield here, value


def _read_comment(lines: list[str], path: tuple[str, ...], node: yaml.Node) -> str:
    line = node.start_mark.line
    if not lines[line].strip().startswith(f"{path[-1]}:"):
        line -= 1
    comment: list[str] = []
    while line and lines[line - 1].strip().startswith("#"):
        line -= 1
        comment.insert(0, lines[line].strip().removeprefix("#").strip())
    text = " ".join(comment)
    return text.removeprefix("-- ") if text.startswith("-- ") else ""


def _find_schema(schema: Mapping[str, Any], path: tuple[str, ...]) -> Mapping[str, Any]:
    for name in path:
        schema = schema.get("properties", {}).get(name, {})
    return schema


def _format_allowed(schema: Mapping[str, Any]) -> str:
    if choices := schema.get("enum"):
        return ", ".join(map(format_code, choices))
    low, high = schema.get("minimum"), schema.get("maximum")
    bounds = "" if low is None else f", at least {low}" if high is None else f", {low} to {high}"
    return KINDS.get(str(schema.get("type")), "") + bounds
