"""A batch workflow: list the rates, train once for each of them, select the best. Run it: scanflow run app.py"""

import scanflow as sf


@sf.step
def load(count: int = 4) -> list[float]:
    return [n / 10 for n in range(1, count + 1)]


@sf.step(retries=1, timeout="5m")
def train(rate: float) -> dict[str, float]:
    print(f"training with rate {rate}")
    return {"rate": rate, "score": 1 - (rate - 0.3) ** 2}


@sf.step
def select(trained: list[dict[str, float]]) -> dict[str, float]:
    best = max(trained, key=lambda model: model["score"])
    print(f"best: {best}")
    return best


rates = load.bind(count=4)
trained = train.map(rates)  # once for each rate, in parallel
best = select.bind(trained)

app = sf.Application(
    name="my-app",
    workflows=[sf.Workflow(name="training", nodes=[rates, trained, best])],
)
