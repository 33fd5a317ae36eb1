"""What ``scanflow init`` writes: one file that runs as it is."""

from __future__ import annotations

from pathlib import Path

from scanflow.errors import InvalidError
from scanflow.names import slug

_APP = '''"""A first workflow. Run it: scanflow run app.py"""

import scanflow as sf


@sf.step
def load(count: int = 4) -> list[float]:
    return [n / 10 for n in range(1, count + 1)]


@sf.step(retries=1, timeout="5m")
def train(rate: float) -> dict[str, float]:
    print(f"training with rate {{rate}}")
    return {{"rate": rate, "score": 1 - (rate - 0.3) ** 2}}


@sf.step
def select(trained: list[dict[str, float]]) -> dict[str, float]:
    best = max(trained, key=lambda one: one["score"])
    print(f"best: {{best}}")
    return best


rates = load.bind(count=4)
trained = train.map(rates)  # once for each rate, in parallel
best = select.bind(trained)

app = sf.Application(
    name="{name}",
    workflows=[sf.Workflow(name="training", nodes=[rates, trained, best])],
)
'''


def write_application(folder: Path, name: str | None) -> Path:
    """Write ``app.py`` into ``folder``, which is made if need be, and return its path.

    Raises:
        InvalidError: there is one already.
    """
    path = folder / "app.py"
    if path.exists():
        raise InvalidError(f"There is a file {str(path)!r} already. Name another folder: scanflow init my-app")
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(_APP.format(name=name or slug(folder.absolute().name) or "app"), encoding="utf-8")
    return path
