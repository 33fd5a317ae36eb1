"""Functions are named by a verb and its object, and variables by what they are, in the product and in its tests."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests import grammar


@pytest.mark.parametrize(("paths", "limits"), [(grammar.PRODUCT, grammar.LIMITS), (grammar.TESTS, grammar.TEST_LIMITS)])
def test_names_keep_to_the_grammar(paths: Sequence[Path], limits: Mapping[str, int]) -> None:
    assert not grammar.list_excess(grammar.find_in_paths(paths), limits)


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("participle", "told given_back _taken_back acted_on wanted called _kept_by_server model_changed why_denied"),
        ("of", "agents_of _in_all_of tell_of"),
        ("pronoun", "each mine others said _by _over _in _at of _of for_each"),
        (None, "feed need seed embed speed shed read set put cut split run read_again _put_off run_once exceed"),
        (None, "from_embedded load_cached_model wait_until_settled check_supported _is_as_wanted has_drifted"),
        (None, "requested_shape select_agents format_call __contains__ _responds_and_is_listed hundred proceed"),
    ],
)
def test_a_function_is_classified_by_the_form_of_its_name(kind: str | None, names: str) -> None:
    assert {name: grammar.classify_function(name) for name in names.split()} == dict.fromkeys(names.split(), kind)


def test_every_form_of_binding_is_counted_and_properties_and_exceptions_are_not() -> None:
    text = """
one = 1
found: int = 2
found += 1
for known, _ in pairs: pass
with file as given: pass
if (told := [made for made in told]): pass
try: pass
except ValueError as kept: pass
match one:
    case [said, meant]: pass
def run(left, *, one=1): pass
class Buffer:
    @property
    def closed(self): pass
    @functools.cached_property
    def named(self): pass
    def connection_lost(self): pass
    def changed(self): pass
def at(time): pass
"""
    findings = list(grammar.find_in_module("scanflow/app/triggers.py", ast.parse(text)))
    names = {kind: " ".join(finding.name for finding in findings if finding.kind == kind) for kind in grammar.LIMITS}
    assert sorted(names.pop("assignment").split()) == sorted("one found known given told made kept said meant".split())
    assert names == {"participle": "changed", "of": "", "pronoun": "", "parameter": "left one"}
    assert [finding.line for finding in findings if finding.name == "changed"] == [19]


def test_a_kind_with_more_findings_than_its_limit_is_listed() -> None:
    pronouns = [grammar.Finding("scanflow/app/model.py", 3, "each", "pronoun")]
    values = [grammar.Finding("scanflow/app/model.py", line, "one", "assignment") for line in range(61)]
    assert grammar.list_excess(values[:60], grammar.LIMITS) == []
    assert grammar.list_excess([*pronouns, *values[:60]], grammar.LIMITS) == ["scanflow/app/model.py:3 each (pronoun)"]
    assert len(grammar.list_excess(values, grammar.LIMITS)) == 61
