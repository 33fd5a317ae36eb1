"""What is sent to the API server, read by a YAML reader and a JSON reader that are not ours."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as some

from scanflow.backends.kubernetes import request_body
from scanflow.backends.kubernetes.api_errors import build_api_error
from scanflow.errors import InvalidError

TEXTS = some.text(alphabet=some.characters(exclude_categories=["Cs"]))


def config_map(**data: str) -> dict[str, Any]:
    return {"kind": "ConfigMap", "metadata": {"name": "code-1", "namespace": "shop"}, "data": data}


@given(some.dictionaries(TEXTS, some.lists(TEXTS | some.integers() | some.none() | some.booleans())))
def test_an_object_reads_the_same_as_yaml_and_as_json(manifest: dict[str, Any]) -> None:
    body = request_body.encode_body(manifest)
    assert json.loads(body) == manifest
    assert yaml.safe_load(body) == manifest


@pytest.mark.parametrize(
    "text", ["🚀", "\U0001d6fc = 1", "a\u2028b\u2029c\x85d", "\x7f\x00\x9f", "\ufeff\uffff\U0010ffff", "\\ud83d"]
)
def test_every_character_arrives_as_it_was_written(text: str) -> None:
    manifest = config_map(**{"train.py": text})
    assert yaml.safe_load(request_body.encode_body(manifest)) == manifest


def test_what_utf8_does_not_have_is_named_with_its_object_and_field() -> None:
    manifest = config_map(**{"a.py": "🚀", "b.py": "caf\udce9"})
    with pytest.raises(InvalidError, match=r"'code-1' of the namespace 'shop' .* data\.'b\.py' .*'caf\\udce9'"):
        request_body.encode_body(manifest, what=request_body.describe_manifest(manifest))


def test_what_the_api_server_refuses_names_the_object() -> None:
    path = "/api/v1/namespaces/shop/configmaps/code-1"
    assert "configmaps 'code-1' of the namespace 'shop': error decoding" in str(
        build_api_error(400, {"message": "error decoding YAML"}, path)
    )
    created = build_api_error(422, {"message": "too long", "details": {"name": "run-a"}}, path.rpartition("/")[0])
    assert "configmaps 'run-a' of the namespace 'shop': too long" in str(created)
