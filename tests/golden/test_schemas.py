"""Custom resources of the golden manifests, checked as an API server with strict field validation would check them.

Types, values and required fields are as their CRDs say, and no field is one that the server would prune. Rules in CEL
and ``format``s are left to ``tests/cluster``. The schemas are upstream's: ``tests/golden/schemas/make.py``.
"""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import jsonschema_rs
import pytest
import yaml
from lightkube.models.meta_v1 import ObjectMeta

from tests.golden.schemas.make import FOLDER, SOURCES

Schema = dict[str, Any]
Document = dict[str, Any]

BUILT_IN_GROUPS: Final = {
    "",
    "apps",
    "autoscaling",
    "batch",
    "policy",
    "networking.k8s.io",
    "rbac.authorization.k8s.io",
    "resource.k8s.io",
}

FREE_FORM: Final = {("annotations",), ("labels",), ("matchLabels",), ("nodeSelector",)}
"""Objects whose fields a user names, in all kinds."""

_STRINGS: Final = {"type": "object", "additionalProperties": {"type": "string"}}
METADATA: Final = {
    "type": "object",
    "properties": {name: {} for name in inspect.get_annotations(ObjectMeta)}
    | {"name": {"type": "string"}, "namespace": {"type": "string"}, "labels": _STRINGS, "annotations": _STRINGS},
}
"""What a CRD leaves to the server, which takes it for an ``ObjectMeta``."""


class UniqueItems:
    """Refuse two equal items of a ``set``, and two of a ``map`` that have the same keys."""

    def __init__(self, parent_schema: Schema, value: str, schema_path: list[str | int]) -> None:  # noqa: ARG002  the library gives it
        self.is_unique = value in {"map", "set"}
        fields = parent_schema.get("items", {}).get("properties", {})
        self.defaults = {key: fields[key].get("default") for key in parent_schema.get("x-kubernetes-list-map-keys", ())}

    def validate(self, instance: Any) -> None:
        seen: list[Any] = []
        for item in instance if self.is_unique and isinstance(instance, list) else ():
            identity = item
            if self.defaults and isinstance(item, dict):
                identity = {key: item.get(key, default) for key, default in self.defaults.items()}
            if identity in seen:
                raise ValueError(f"{json.dumps(identity)} is there twice")
            seen.append(identity)


def close_schema(schema: Schema) -> Schema:
    """Return a structural schema as plain JSON Schema, which refuses what the server refuses or prunes."""
    closed = dict(schema)
    fields = schema.get("properties", {})
    if schema.get("x-kubernetes-embedded-resource"):
        fields = fields | {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": METADATA}
    if fields:
        closed["properties"] = {name: close_schema(field) for name, field in fields.items()}
    for keyword in ("items", "additionalProperties"):
        if isinstance(schema.get(keyword), dict):
            closed[keyword] = close_schema(schema[keyword])
    if "required" in schema:  # the server sets defaults first; draft 4 wants no empty list
        closed["required"] = [name for name in schema["required"] if "default" not in fields.get(name, {})]
        if not closed["required"]:
            del closed["required"]
    types = ["integer", "string"] if schema.get("x-kubernetes-int-or-string") else [schema.get("type")]
    if types == ["object"] and not schema.get("x-kubernetes-preserve-unknown-fields"):
        closed.setdefault("additionalProperties", False)
    if types != [None]:
        closed["type"] = [*types, "null"] if schema.get("nullable") else types
    return closed


def find_errors(document: Any, validator: jsonschema_rs.Draft4Validator) -> list[str]:
    return [f"{'.'.join(map(str, error.instance_path))}: {error.message}" for error in validator.iter_errors(document)]


def build_validator(schema: Schema) -> jsonschema_rs.Draft4Validator:
    """Build it for the draft whose words OpenAPI 3.0 took over."""
    keywords: dict[str, type[jsonschema_rs.KeywordValidator]] = {"x-kubernetes-list-type": UniqueItems}
    return jsonschema_rs.Draft4Validator(close_schema(schema), validate_formats=False, keywords=keywords)


@cache
def load_validator(name: str) -> jsonschema_rs.Draft4Validator:
    schema = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))["openAPIV3Schema"]
    schema["properties"]["metadata"] = METADATA
    if name == "argoproj.io-v1alpha1-Workflow":
        # A template's container needs no name, as a pod's does. Upstream says so of `templates` only, by a program
        # (hack/manifests/crds.go) that passes over `templateDefaults`.
        defaults = schema["properties"]["spec"]["properties"]["templateDefaults"]
        defaults["properties"]["container"]["required"].remove("name")
    return build_validator(schema)


def name_schema(document: Document) -> str:
    return f"{document['apiVersion'].replace('/', '-')}-{document['kind']}"


def load_documents() -> Iterator[tuple[str, Document]]:
    """Yield each custom resource of the golden files, and which it is: folder, file, kind and place in the file."""
    for path in sorted(Path(__file__).parent.rglob("*.yaml")):
        for index, document in enumerate(yaml.load_all(path.read_text(encoding="utf-8"), yaml.CSafeLoader)):
            group = document.get("apiVersion", "").rpartition("/")[0]
            if group not in BUILT_IN_GROUPS:
                name = f"{path.parent.name}/{path.stem}-{document['kind']}-{index}"
                yield name, json.loads(json.dumps(document))  # no part is shared, as those of YAML are


DOCUMENTS: Final = dict(load_documents())


def find_objects(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Document]]:
    """Yield the objects inside a value, itself included, with the names of the fields that lead there."""
    if isinstance(value, dict):
        yield path, value
        for name, field in value.items():
            yield from find_objects(field, (*path, name))
    elif isinstance(value, list):
        for item in value:
            yield from find_objects(item, path)


def test_each_custom_kind_has_the_schema_of_its_source_and_each_schema_a_golden_object() -> None:
    assert {name_schema(document) for document in DOCUMENTS.values()} == SOURCES.keys()
    assert {path.stem for path in FOLDER.glob("*.json")} == SOURCES.keys()
    for name, source in SOURCES.items():
        upstream = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))["upstream"]
        assert source._replace(**upstream) == source, f"Run tests/golden/schemas/make.py: {name} is of {upstream}"


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_golden_object_is_as_its_kind_s_schema_wants_it(name: str) -> None:
    document = DOCUMENTS[name]
    assert find_errors(document, load_validator(name_schema(document))) == []


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_field_that_no_schema_knows_is_refused_everywhere_but_where_users_name_the_fields(name: str) -> None:
    document = copy.deepcopy(DOCUMENTS[name])
    validator = load_validator(name_schema(document))
    for path, fields in list(find_objects(document)):
        fields["notAField"] = "text"
        is_free_form = path[-1:] in FREE_FORM or path == ("spec", "triggers", "metadata")
        assert validator.is_valid(document) is is_free_form, path
        del fields["notAField"]


@pytest.mark.parametrize(
    ("name", "path", "value", "error"),
    [
        ("batch-one-task-Workflow", "spec.entrypoint", 1, "string"),
        ("batch-one-task-Workflow", "spec.entrypoint", None, "string"),
        ("batch-one-task-Workflow", "spec.templateDefaults.container.env.0", {"value": "1"}, "required"),
        ("mpijob-MPIJob", "spec.mpiReplicaSpecs.Worker.replicas", "2", "integer"),
        ("mpijob-MPIJob", "metadata.labels.queue", 1, "string"),
        ("route-HTTPRoute", "spec.rules.0.backendRefs.0.port", 65536, "maximum"),
        ("route-HTTPRoute", "spec.rules.0.matches.0.path.type", "Prefix", "not one of"),
        ("route-HTTPRoute", "spec.parentRefs.0.name", "", "shorter"),
        ("scaling-rps-ScaledObject", "spec.triggers.0.metadata.threshold", 20, "string"),
        ("service-kserve-InferenceService", "spec.predictor.containers.0.resources.limits.cpu", "2 cores", "match"),
        ("service-kserve-InferenceService", "spec.predictor.containers.0.resources.limits.cpu", [2], "types"),
        ("service-kserve-InferenceService", "spec.predictor.containers.0.ports.1.containerPort", 8080, "twice"),
        ("volcano-scale-Job", "spec.plugins.ssh", "-p", "array"),
    ],
)
def test_a_wrong_value_is_refused_and_named(name: str, path: str, value: Any, error: str) -> None:
    document = copy.deepcopy(next(schema for key, schema in DOCUMENTS.items() if key.startswith(f"kubernetes/{name}-")))
    *parents, last = (int(key) if key.isdigit() else key for key in path.split("."))
    target: Any = document
    for key in parents:
        target = target[key]
    target[last] = value
    errors = find_errors(document, load_validator(name_schema(document)))
    assert any(error in text and path.startswith(text.partition(":")[0]) for text in errors), errors


_INTEGER: Final = {"type": "integer"}
_POD: Final = {"kind": "Pod", "apiVersion": "v1", "metadata": {"labels": {"app": "a"}}}


@pytest.mark.parametrize(
    ("schema", "accepted", "refused"),
    [
        ({"type": "object"}, {}, {"a": 1}),
        ({"type": "object", "properties": {"a": _INTEGER}}, {"a": 1}, {"a": "1"}),
        ({"type": "object", "additionalProperties": _INTEGER}, {"a": 1}, {"a": "1"}),
        ({"type": "object", "additionalProperties": {"type": "object"}}, {"a": {}}, {"a": {"b": 1}}),
        ({"type": "object", "x-kubernetes-preserve-unknown-fields": True}, {"a": 1}, []),
        ({"type": "object", "required": ["a"], "properties": {"a": _INTEGER}}, {"a": 1}, {}),
        ({"type": "object", "required": ["a"], "properties": {"a": _INTEGER | {"default": 1}}}, {}, {"b": 1}),
        ({"type": "object", "x-kubernetes-embedded-resource": True}, _POD, _POD | {"spec": {}}),
        ({"type": "object", "x-kubernetes-embedded-resource": True}, _POD, _POD | {"metadata": {"label": "a"}}),
        (_INTEGER, 1, None),
        (_INTEGER | {"nullable": True}, None, "1"),
        (_INTEGER | {"minimum": 1, "exclusiveMinimum": True}, 2, 1),
        ({"x-kubernetes-int-or-string": True}, 1, 1.5),
        ({"x-kubernetes-int-or-string": True, "anyOf": [_INTEGER, {"type": "string"}]}, "1", True),
        ({"type": "array", "items": _INTEGER, "x-kubernetes-list-type": "atomic"}, [1, 1], [{}]),
        ({"type": "array", "items": _INTEGER, "x-kubernetes-list-type": "set"}, [1, 2], [1, 1]),
    ],
)
def test_a_schema_says_what_an_api_server_reads_in_it(schema: Schema, accepted: Any, refused: Any) -> None:
    validator = build_validator(schema)
    assert find_errors(accepted, validator) == []
    assert find_errors(refused, validator)


def test_items_of_a_map_are_distinguished_by_their_keys_defaults_included() -> None:
    port = {"type": "object", "properties": {"number": _INTEGER, "protocol": {"type": "string", "default": "TCP"}}}
    validator = build_validator(
        {
            "type": "array",
            "items": port,
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["number", "protocol"],
        }
    )
    assert validator.is_valid([{"number": 80}, {"number": 80, "protocol": "UDP"}])
    assert find_errors([{"number": 80}, {"number": 80, "protocol": "TCP"}], validator)
