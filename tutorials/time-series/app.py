"""A forecast of the weather: training and evaluation in the order of time, and seasons that are no drift."""

import scanflow as sf

QUARTERS = [f"{year}-{month:02d}-01" for year in (2014, 2015) for month in (1, 4, 7, 10)]
TOLERANCE = 3.0  # a forecast is right that is off by no more degrees


@sf.step
def split() -> dict[str, float]:
    """Return the mean error of a split at random, and of one in the order of time, in degrees."""
    from sklearn.model_selection import KFold, TimeSeriesSplit, cross_val_score
    from weather import HORIZON, build_samples, make_model

    x, y = build_samples()
    splits = {"at random": KFold(4, shuffle=True, random_state=0), "in order": TimeSeriesSplit(4, gap=HORIZON)}
    scores = {
        name: cross_val_score(make_model(), x, y, cv=how, scoring="neg_mean_absolute_error")
        for name, how in splits.items()
    }
    return {name: round(float(-score.mean()), 2) for name, score in scores.items()}


@sf.step
def check(quarter: str) -> dict[str, object]:
    """Compare a quarter with all days before it, and with the same quarter of the years before."""
    import numpy as np
    import pandas as pd
    from weather import HORIZON, read_days

    from scanflow.drift.detectors import catalogue

    start = pd.Timestamp(quarter)
    days = read_days()[["temp_max"]]
    now, past = days[start : start + pd.offsets.QuarterEnd(0)], days[days.index < start]
    references = {"all days": past, "same season": past[past.index.quarter == start.quarter]}
    verdict: dict[str, object] = {"quarter": quarter}
    for name, reference in references.items():
        detector = catalogue.make("table", generator=np.random.default_rng(1), options={"level": 0.02})
        # The days next to each other are alike, and the test is of rows that are not: it gets every third day.
        fitted = catalogue.fit(detector, reference[::HORIZON])
        scores = catalogue.score(fitted, now[::HORIZON])
        verdict[name] = {"drifted": scores.drifted, "p": round(scores.p_value, 4)}
    return verdict


@sf.step
def train(until: str = "2014-01-01", days: int = 90) -> None:
    """Train on what was known on a day, and compare with the model in use on the days after it, which neither saw."""
    import mlflow
    import numpy as np
    from mlflow.models import infer_signature
    from weather import build_samples, make_model, select_after, select_known

    x, y = build_samples()
    model = make_model().fit(*select_known(x, y, until))
    client = mlflow.MlflowClient()
    try:
        champion = client.get_model_version_by_alias("weather", "champion").version
    except mlflow.exceptions.MlflowException:
        champion = None
    logged = mlflow.sklearn.log_model(
        model,
        name="model",
        signature=infer_signature(x, y),
        registered_model_name="weather",
        serialization_format="cloudpickle",
        pip_requirements=[],
    )
    version = int(logged.registered_model_version)
    sf.output("version", version)
    if champion is None:
        client.set_registered_model_alias("weather", "champion", version)
        return
    x_after, y_after = select_after(x, y, until, days)
    in_use = mlflow.sklearn.load_model(f"models:/weather/{champion}")
    errors = {name: who.predict(x_after) - y_after for name, who in (("champion", in_use), ("challenger", model))}
    right = {name: np.abs(error) <= TOLERANCE for name, error in errors.items()}
    slice_ = {"name": "current", "n": len(y_after)}
    slice_ |= {f"{name}_right": int(answers.sum()) for name, answers in right.items()}
    slice_["gained"] = int((right["challenger"] & ~right["champion"]).sum())
    sf.output("champion_version", int(champion))
    sf.output("slices", [slice_])
    for name, error in errors.items():
        sf.output(f"{name}_accuracy", float(right[name].mean()))
        sf.output(f"{name}_off", round(float(error.mean()), 2))


app = sf.Application(
    name="time-series",
    team="datascience",
    workflows=[
        sf.Workflow(name="split", nodes=[split.bind()]),
        sf.Workflow(name="detector", nodes=[check.map(QUARTERS)]),
        sf.Workflow(name="training", nodes=[train.bind()]),
    ],
    tracker=sf.Tracker(),
)
