"""The grammar of names: a function is named by a verb and its object, and a variable by what it is.

``python -m tests.grammar [PATH…]`` lists the names of the product and of the tests that are at odds with it, then their
counts by package. A test itself is named by a sentence.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

CHECKOUT = Path(__file__).parents[1]
PRODUCT = tuple(CHECKOUT / folder for folder in ("scanflow", "client", "server", "agents"))
TESTS = (CHECKOUT / "tests",)

EXCEPTIONS = {
    "connection_made": "asyncio.Protocol calls it so",
    "data_received": "asyncio.Protocol calls it so",
    "eof_received": "asyncio.Protocol calls it so",
    "connection_lost": "asyncio.Protocol calls it so",
    "sorted": "every reader of Python knows it: a copy, where sort changes its object",
    "reversed": "every reader of Python knows it: a copy, where reverse changes its object",
    "client/scanflow_client/cli/server_commands.py:up": "a command that users type: scanflow up",
    "client/scanflow_client/cli/server_commands.py:down": "a command that users type: scanflow down",
    "client/scanflow_client/cli/agent_commands.py:why": "a command that users type: scanflow why",
    "client/scanflow_client/control_client.py:why": "what users write: client.why(action)",
    "scanflow/app/triggers.py:at": "what users write in applications: sf.at(time)",
    "scanflow/app/triggers.py:every": "what users write in applications: sf.every(hours=1)",
    "tests/laws/graph_components.py:all": "a way to route, called by its name: ROUTING",
    "tests/unit/placement/equations.py:any": "an affinity, called by its name: --affinity any",
}
"""Functions that keep their name, everywhere or in one module, and why."""

LIMITS = {"participle": 20, "of": 20, "pronoun": 0, "assignment": 60, "parameter": 60}
"""How many findings of a kind the product may have."""

TEST_LIMITS = dict.fromkeys(LIMITS, 0)

VALUE_WORDS = frozenset("one found known given told made kept said meant left world hears".split())
"""Words that stand for almost any value; ``left`` beside ``right`` is a side."""

IRREGULAR = frozenset(
    """agreed begun bought bound broken brought built caught chosen done drawn driven drunk eaten fallen fed felt
    flown forgotten found freed frozen given gone grown guaranteed heard held hidden kept known laid learnt
    led left lent lost made meant paid ridden risen seen sent shaken shown sold spent spoken stolen stood
    sworn taken taught thought thrown told torn understood undone withdrawn woken won worn wound written""".split()
)
"""Participles without -ed, but those that look like their verb: cut, put, read, run, set, split."""

NOT_PARTICIPLES = frozenset("bed bred embed hundred red shed sled unfed wed".split())

VERBS = frozenset(
    """add apply ask assert build check clear collect compare compute copy count create delete describe discard draw
    drop encode ensure explain fetch filter find forget format get hold ignore iterate keep list load log make mark
    merge note parse print publish put raise read record reject remove render replace report require restore return
    select send set show skip sort start store take tell test update validate wait warn write yield""".split()
)
"""Verbs at the head of a name that may end in a participle: load_declared, wait_until_settled."""

PREDICATES = frozenset("is are was were has have had can should must may does".split())
CONVERSIONS = frozenset({"from", "to"})

PRONOUNS = frozenset(
    """all another any anything both each elsewhere every everything here it itself mine nobody none nothing one
    other others ours own said same several some that theirs there these this those what when where which who
    whose why""".split()
)
PREPOSITIONS = frozenset(
    """about above across after against along among around as at before behind below beside between beyond by
    down during except for from if in inside into near of off on onto out outside over past since than through
    to toward under until up upwards via with within without""".split()
)
ADVERBS = frozenset("again apart away back last late meanwhile not once only right together twice well yet".split())
PARTICLES = PRONOUNS | PREPOSITIONS | ADVERBS


class Finding(NamedTuple):
    path: str
    line: int
    name: str
    kind: str


def is_participle(word: str) -> bool:
    return word in IRREGULAR or (word.endswith("ed") and not word.endswith("eed") and word not in NOT_PARTICIPLES)


def lacks_verb(words: list[str]) -> bool:
    """Return whether a name is a participle (told, given_back) or ends in one and has no verb at its head (model_lost).

    A participle before its noun is a noun phrase: requested_shape.
    """
    if is_participle(words[0]) and (len(words) == 1 or words[1] in PARTICLES):
        return True
    if words[0] in VERBS | CONVERSIONS or PREDICATES.intersection(words):
        return False
    while words[-1] in PARTICLES and len(words) > 1:
        words = words[:-1]
    return is_participle(words[-1])


def classify_function(name: str) -> str | None:
    """Return which kind of finding the name of a function is; None: it is in order."""
    words = name.strip("_").lower().split("_")
    if name.startswith(("__", "test_")):
        return None
    if PRONOUNS.union(PREPOSITIONS).issuperset(words) and (len(words) == 1 or words[-1] != "of"):
        return "pronoun"
    if words[-1] == "of":
        return "of"
    return "participle" if lacks_verb(words) else None


def is_property_or_overload(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    decorators = {ast.unparse(decorator).rpartition(".")[2] for decorator in function.decorator_list}
    return not decorators.isdisjoint({"property", "cached_property", "setter", "deleter", "overload"})


def classify_node(node: ast.AST) -> tuple[str, str | None]:
    """Return the name that a node defines or binds, and which kind of finding it is."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) if not is_property_or_overload(node):
            return name, classify_function(name)
        case ast.arg(arg=name) if name in VALUE_WORDS:
            return name, "parameter"
        case ast.Name(id=name, ctx=ast.Store()) | ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) if (
            name in VALUE_WORDS
        ):
            return name, "assignment"
    return "", None


def names_right(node: ast.AST) -> bool:
    return (isinstance(node, ast.arg) and node.arg == "right") or (isinstance(node, ast.Name) and node.id == "right")


def find_in_module(path: str, module: ast.Module) -> Iterator[Finding]:
    nodes = list(ast.walk(module))
    updated = {node.target for node in nodes if isinstance(node, ast.AugAssign)}
    sides = {"left"} if any(names_right(node) for node in nodes) else set[str]()
    for node in nodes:
        name, kind = classify_node(node)
        excepted = {name, f"{path}:{name}"} & (EXCEPTIONS.keys() | sides)
        if kind and node not in updated and not excepted:
            yield Finding(path, getattr(node, "lineno", 0), name, kind)


def parse_modules(paths: Iterable[Path]) -> dict[str, ast.Module]:
    """Return the trees of modules, and of all modules of folders, by their sorted paths in the checkout."""
    modules = {module.resolve() for path in paths for module in (path.rglob("*.py") if path.is_dir() else [path])}
    return {str(module.relative_to(CHECKOUT)): ast.parse(module.read_bytes()) for module in sorted(modules)}


def find_in_paths(paths: Iterable[Path]) -> list[Finding]:
    """Return the findings in modules, and in all modules of folders, by path and line."""
    return sorted(finding for path, tree in parse_modules(paths).items() for finding in find_in_module(path, tree))


def count_by_package(findings: Iterable[Finding]) -> dict[str, Counter[str]]:
    """Return how many findings of each kind are in a package, or in a package of it: client/scanflow_client/cli."""
    counts: dict[str, Counter[str]] = {}
    for path, _line, _name, kind in findings:
        package = "/".join(Path(path).parent.parts[: 2 if path.startswith("scanflow/") else 3])
        counts.setdefault(package, Counter())[kind] += 1
    return counts


def list_excess(findings: Iterable[Finding], limits: Mapping[str, int]) -> list[str]:
    """Return the findings of each kind that has more of them than its limit."""
    by_kind: dict[str, list[str]] = {}
    for finding in findings:
        by_kind.setdefault(finding.kind, []).append(format_finding(finding))
    return [line for kind, lines in by_kind.items() if len(lines) > limits[kind] for line in lines]


def format_finding(finding: Finding) -> str:
    return f"{finding.path}:{finding.line} {finding.name} ({finding.kind})"


def format_row(package: str, counts: Mapping[str, int]) -> str:
    return f"{package:<40}" + "".join(f"{counts[kind]:>12}" for kind in LIMITS)


def main(arguments: list[str]) -> None:
    findings = find_in_paths([Path(path) for path in arguments] or (*PRODUCT, *TESTS))
    for finding in findings:
        print(format_finding(finding))
    counts = count_by_package(findings)
    print("\n" + f"{'':<40}" + "".join(f"{kind:>12}" for kind in LIMITS))
    for package in sorted(counts):
        print(format_row(package, counts[package]))
    print(format_row("total", sum(counts.values(), Counter[str]())))


if __name__ == "__main__":
    main(sys.argv[1:])
