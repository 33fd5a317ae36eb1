"""``python -m tests.benchmarks --peers VENV``: measure, print the table, write the page."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.benchmarks.measure import interleave
from tests.benchmarks.report import machine, page, table
from tests.benchmarks.suite import Places, suite

CHECKOUT = Path(__file__).resolve().parents[2]


def main() -> int:
    """Run what the arguments choose; 1 when a contender could not be measured."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("--peers", type=Path, required=True, help="the environment with Metaflow and Prefect")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="measure these benchmarks, and write no page")
    parser.add_argument(
        "--without", nargs="+", default=[], metavar="NAME", help="leave these benchmarks out, and write no page"
    )
    parser.add_argument("--contenders", nargs="+", metavar="NAME", help="measure these contenders, and write no page")
    parser.add_argument("--rounds", type=int, help="rounds of each benchmark; the default is its own")
    parser.add_argument(
        "--page", type=Path, default=CHECKOUT / "docs" / "benchmarks.md", help="where a full run is written"
    )
    chosen = parser.parse_args()

    scripts = Path(sys.executable).parent
    places = Places(ours=scripts, peers=chosen.peers.absolute() / "bin", checkout=CHECKOUT)
    described = machine(places.ours, places.peers)
    print(described, flush=True)
    known = suite(places)
    names = {benchmark.name for benchmark in known}
    if unknown := {*(chosen.only or []), *chosen.without} - names:
        parser.error(f"no benchmark is named {', '.join(sorted(unknown))}; there are: {', '.join(sorted(names))}")
    results = []
    for benchmark in known:
        if benchmark.name in chosen.without or (chosen.only and benchmark.name not in chosen.only):
            continue
        print(f"{benchmark.name}: {benchmark.how}", flush=True)
        contenders = chosen.contenders or list(benchmark.contenders)
        results.append(
            interleave(benchmark, contenders, rounds=chosen.rounds, say=lambda line: print(line, flush=True))
        )
    print(f"\n{table(results)}\n")
    failed = [f"{result.benchmark.name}: {name}: {why}" for result in results for name, why in result.failures.items()]
    if failed:
        print("Could not be measured:", *failed, sep="\n  ", file=sys.stderr)
        return 1
    if chosen.only or chosen.without or chosen.contenders or chosen.rounds:
        return 0
    chosen.page.write_text(page(results, described=described))
    print(f"Written: {chosen.page.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
