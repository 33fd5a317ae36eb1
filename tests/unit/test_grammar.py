"""Functions of the product are named by a verb and its object, and variables by what they are."""

from __future__ import annotations

import ast
from collections import Counter

import pytest

from tests import grammar

TABLE = """
agents/scanflow_agents                             0           0           1           5           0
agents/scanflow_agents/host                       19           8           6          37           2
agents/scanflow_agents/templates                  33          11           6         168          35
client/scanflow_client                            15          12           8         133           7
client/scanflow_client/cli                         2           2           0          72           4
client/scanflow_client/demo                        0           1           1          42           1
client/scanflow_client/formatting                  5           1           3         121          41
client/scanflow_client/reproduction                1           3           0           4           0
client/scanflow_client/thesis                      3           2           0          13           1
scanflow                                           8           5           1          27           2
scanflow/agent                                    34          13          14         108          31
scanflow/app                                      10           5           1          36           4
scanflow/backends                                160          68          25         616          99
scanflow/characterization                          2           0           1          19           6
scanflow/deployer                                  9           3           0          17           0
scanflow/drift                                    31          10          11         174          16
scanflow/images                                    4           3           0           6           1
scanflow/knowledge                                13           3           2          52          21
scanflow/load                                      2           2           2           8           0
scanflow/placement                                15           3           6          77           3
scanflow/processes                                11           1           0          12           0
scanflow/protos                                    0           0           0           2           0
scanflow/reports                                  14          10           2          97          19
scanflow/testing                                   9           0           1          35           0
scanflow/transport                                 6           3           0          16           0
scanflow/tuning                                    4           3           3          41          19
server/scanflow_server                            26          11           4         101          18
server/scanflow_server/arbiter                    20           5           8          41          20
server/scanflow_server/control                     7           7           3          32          12
server/scanflow_server/routes                      6           0           6          59           7
server/scanflow_server/store                      13           4           6          37           2
server/scanflow_serving                           26           7           3         173          21
"""
"""What is left in each package: participles, names in _of, pronouns, assignments and parameters of words for any value.

`python -m tests.grammar` prints its rows. It goes once all kinds are within their limits.
"""


def read_table(text: str) -> dict[str, Counter[str]]:
    rows = [line.split() for line in text.split("\n") if line]
    return {row[0]: Counter(dict(zip(grammar.LIMITS, map(int, row[1:]), strict=True))) for row in rows}


def test_names_of_the_product_keep_to_the_grammar() -> None:
    counts = grammar.count_by_package(grammar.find_in_paths(grammar.CHECKOUT / folder for folder in grammar.PRODUCT))
    problems = grammar.compare_counts(counts, read_table(TABLE))
    assert not problems, "\n".join(problems)


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


def test_a_count_neither_rises_nor_falls_unseen_until_its_kind_is_within_the_limit() -> None:
    table = {"scanflow/app": Counter(of=30), "scanflow/drift": Counter(of=10)}
    assert grammar.compare_counts(table, table) == []
    risen, fallen = grammar.compare_counts({"scanflow/app": Counter(of=31), "scanflow/drift": Counter(of=9)}, table)
    assert risen.startswith("scanflow/app: 31 of kind 'of', where 30 were left.")
    assert fallen == "scanflow/drift: lower the table's number of kind 'of' from 10 to 9."
    assert grammar.compare_counts({"scanflow/app": Counter(of=grammar.LIMITS["of"])}, {}) == []
