"""``python -m tests.benchmarks --peers VENV --servers VENV``: measure, print the tables, write the page."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.benchmarks.benchmark_suite import suite
from tests.benchmarks.cluster_suite import cluster
from tests.benchmarks.control_suite import control
from tests.benchmarks.measure import Benchmark, Places, Results, interleave
from tests.benchmarks.report import block, machine, table, with_blocks
from tests.benchmarks.serving_suite import serving

CHECKOUT = Path(__file__).resolve().parents[2]
CACHE = CHECKOUT / ".cache"


def main() -> int:
    """Run what the arguments choose; 1 when a contender could not be measured."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument(
        "--peers", type=Path, default=CACHE / "bench", help="the environment with Metaflow, Prefect and Starlette"
    )
    parser.add_argument(
        "--servers", type=Path, default=CACHE / "bench-serving", help="the environment with MLServer and MLflow"
    )
    parser.add_argument(
        "--only",
        nargs="+",
        metavar="NAME",
        help="measure these benchmarks, or groups of them: work, serving, control, cluster (KUBECONFIG names it)",
    )
    parser.add_argument("--without", nargs="+", default=[], metavar="NAME", help="leave these benchmarks or groups out")
    parser.add_argument("--contenders", nargs="+", metavar="NAME", help="measure these contenders, and write no page")
    parser.add_argument("--rounds", type=int, help="rounds of each benchmark, and write no page")
    parser.add_argument(
        "--page",
        type=Path,
        default=CHECKOUT / "docs" / "benchmarks.md",
        help="where the groups that were measured wholly are written",
    )
    chosen = parser.parse_args()

    places = Places(
        ours=Path(sys.executable).parent,
        peers=chosen.peers.absolute() / "bin",
        servers=chosen.servers.absolute() / "bin",
        checkout=CHECKOUT,
    )
    benchmarks = [*suite(places), *serving(places), *control(places), *cluster()]
    names = {benchmark.name for benchmark in benchmarks} | {benchmark.section.group for benchmark in benchmarks}
    if unknown := {*(chosen.only or []), *chosen.without} - names:
        parser.error(f"nothing is named {', '.join(sorted(unknown))}; there are: {', '.join(sorted(names))}")
    described = machine(places)
    print(described, flush=True)
    results = []
    for benchmark in [candidate for candidate in benchmarks if _is_selected(candidate, chosen.only, chosen.without)]:
        print(f"{benchmark.name}: {benchmark.how}", flush=True)
        contenders = chosen.contenders or list(benchmark.contenders)
        results.append(
            interleave(benchmark, contenders, rounds=chosen.rounds, say=lambda line: print(line, flush=True))
        )
    for section in dict.fromkeys(result.benchmark.section for result in results):
        print(
            f"\n{section.title}\n{table(section, [entry for entry in results if entry.benchmark.section is section])}"
        )
    failed = [f"{result.benchmark.name}: {name}: {why}" for result in results for name, why in result.failures.items()]
    if failed:
        print("Could not be measured:", *failed, sep="\n  ", file=sys.stderr)
        return 1
    if not chosen.contenders and not chosen.rounds:
        _write(chosen.page, _whole(results, benchmarks, described))
    return 0


def _is_selected(benchmark: Benchmark, only: Sequence[str] | None, without: Sequence[str]) -> bool:
    mine = {benchmark.name, benchmark.section.group}
    return not mine & set(without) and (not only or bool(mine & set(only)))


def _whole(results: Sequence[Results], benchmarks: Sequence[Benchmark], described: str) -> dict[str, str]:
    blocks = {}
    for group in dict.fromkeys(benchmark.section.group for benchmark in benchmarks):
        mine = [result for result in results if result.benchmark.section.group == group]
        if len(mine) == sum(benchmark.section.group == group for benchmark in benchmarks):
            blocks[group] = block(group, mine, described=described)
    return blocks


def _write(page: Path, blocks: dict[str, str]) -> None:
    if blocks:
        page.write_text(with_blocks(page.read_text() if page.exists() else "", blocks))
        print(f"Written: {page.name}: {', '.join(blocks)}")


if __name__ == "__main__":
    sys.exit(main())
