"""The description of the API: whoever goes by it is understood, and gets what it says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
from hypothesis import HealthCheck
from hypothesis.errors import FailedHealthCheck, Unsatisfiable

from scanflow.settings import Settings
from scanflow_server.auth import register_home
from scanflow_server.server_context import make_context
from scanflow_server.server_settings import ServerSettings
from scanflow_server.store.migrations import migrate
from tests.server import bearer
from tests.unit.server.answering import answering
from tests.waiting import patient

if TYPE_CHECKING:  # whoever only collects these tests needs not wait a second for it
    import schemathesis

PATIENT = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
EXAMPLES = hypothesis.settings(
    max_examples=5, deadline=None, database=None, derandomize=True, suppress_health_check=PATIENT
)


@pytest.fixture(scope="module")
def headers() -> dict[str, str]:
    return {}


@pytest.fixture(scope="module")
def schema(tmp_path_factory: pytest.TempPathFactory, headers: dict[str, str]) -> Iterator[schemathesis.BaseSchema]:
    home: Path = tmp_path_factory.mktemp("home")
    settings = ServerSettings(library=Settings(home=home))
    context = make_context(settings)
    migrate(context.store)
    headers.update(bearer(register_home(context)))
    import schemathesis

    with answering(context) as url:
        yield schemathesis.openapi.from_url(f"{url}/api/v1/openapi.json", headers=headers)
    context.store.close()


def checks() -> list[Any]:
    """Not among them: that valid data is accepted (an application is more than its schema can say), and that other data
    is refused (a number is read of '1' and of true too)."""
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi import checks

    return [
        not_a_server_error,
        checks.status_code_conformance,
        checks.content_type_conformance,
        checks.response_headers_conformance,
        checks.response_schema_conformance,
        checks.unsupported_method,
    ]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["positive", "negative"])
def test_every_route_answers_as_it_is_described(
    schema: schemathesis.BaseSchema, headers: dict[str, str], kind: str
) -> None:
    from schemathesis import GenerationMode
    from schemathesis.core.result import Ok

    assert {member.value for member in GenerationMode} == {"positive", "negative"}
    mode = GenerationMode(kind)
    for result in schema.get_all_operations():
        assert isinstance(result, Ok)
        operation = result.ok()
        if mode is GenerationMode.NEGATIVE and not (operation.body or operation.query or operation.path_parameters):
            continue  # it takes nothing that could be wrong

        @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
        @hypothesis.settings(EXAMPLES)
        def ask(case: Any) -> None:
            case.call_and_validate(checks=checks(), headers=headers, timeout=patient(60))

        try:
            ask()
        except (FailedHealthCheck, Unsatisfiable):
            assert mode is GenerationMode.NEGATIVE, operation.label  # whatever is sent is right


def test_every_route_describes_its_answers_and_its_problems(schema: schemathesis.BaseSchema) -> None:
    paths = schema.raw_schema["paths"]
    for path, routes in paths.items():
        for method, route in routes.items():
            good = [code for code in route["responses"] if code.startswith("2")]
            assert good, (path, method)
            for code, answer in route["responses"].items():
                if code == "204":
                    continue
                kinds = set(answer.get("content", {}))
                wanted = {"application/problem+json"} if code >= "4" else kinds - {"application/problem+json"}
                assert kinds, (path, method, code)
                assert kinds == wanted, (path, method, code)
    assert "HTTPValidationError" not in schema.raw_schema["components"]["schemas"]
