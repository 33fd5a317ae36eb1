"""The steps and the workflow that notebook.ipynb imports."""

import scanflow as sf


@sf.step
def load(rows: int = 200) -> list[float]:
    """Return a series of daily sales. Read your own data here."""
    return [100 + day % 7 * 5 + day / 10 for day in range(rows)]


@sf.step
def smooth(series: list[float], window: int = 7) -> list[float]:
    """Return the moving average of a series."""
    return [
        sum(series[at : at + window]) / window for at in range(len(series) - window + 1)
    ]


@sf.step
def measure(series: list[float]) -> dict[str, float]:
    """Return the lowest and the highest value, and how much the series grew."""
    return {"low": min(series), "high": max(series), "growth": series[-1] - series[0]}


sales = load.bind()
smoothed = smooth.bind(sales)

app = sf.Application(
    name="my-app",
    workflows=[
        sf.Workflow(name="sales", nodes=[sales, smoothed, measure.bind(smoothed)])
    ],
)
