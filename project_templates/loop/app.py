"""A model that four agents watch: they find drift, have samples labelled, retrain, and promote what is better."""

import scanflow as sf

MODEL = "my-app"


def draw_loans(count, ages, seed):
    """Return applicants for a loan of these ages, as a table. Read your own table here."""
    import numpy as np  # in the functions: each agent loads this file, and needs no NumPy
    import pandas as pd

    draw = np.random.default_rng(seed)
    columns = {
        "age": draw.uniform(*ages, count),
        "income": draw.lognormal(10.3, 0.4, count),
        "savings": draw.lognormal(9.5, 0.8, count),
        "loan": draw.lognormal(9.5, 0.6, count),
    }
    return pd.DataFrame(columns)


def repays(x):
    """Return who repays: the income decides it, and from the age of 50 on the savings."""
    import numpy as np

    by_income, by_savings = x["income"] > 2 * x["loan"], x["savings"] > x["loan"]
    return np.where(x["age"] < 50, by_income, by_savings).astype(int)


def data():
    """Return what the first model is trained on: young applicants."""
    x = draw_loans(3000, ages=(18, 45), seed=0)
    return x, repays(x)


def fit(x, y):
    from sklearn.ensemble import RandomForestClassifier

    return RandomForestClassifier(n_estimators=50, random_state=0).fit(x, y)


def label(items, context):
    """Return the true labels of samples. Without this function, people label them: scanflow labels."""
    from scanflow.drift.prediction_data import samples_of

    answers = repays(samples_of(context.tracker, items))
    return {item["id"]: int(answer) for item, answer in zip(items, answers)}


loans = sf.Service(name="loans", model=f"models:/{MODEL}@champion")
agents = [  # the intervals are short, so that one can watch; the defaults are made for real traffic
    sf.Agent(
        name="tracker",
        template="tracker",
        parameters={"interval_s": 1, "again_after_s": 5, "min_predictions": 500},
    ),
    sf.Agent(
        name="checker",
        template="checker",
        parameters={"interval_s": 2, "cool_down_s": 10, "labeller": "app.py:label"},
    ),
    sf.Agent(
        name="planner",
        template="planner",
        parameters={"interval_s": 2, "cool_down_s": 10, "min_picked": 140},
    ),
    sf.Agent(
        name="executor",
        template="executor",
        parameters={"interval_s": 1, "guard_s": 5},
    ),
]
app = sf.Application(
    name="my-app",
    workflows=[
        sf.Workflow(
            name="serve", type="online", nodes=[loans], serving=sf.Serving(record=1)
        ),
        sf.drift.detection(model=MODEL, budget=200),
        sf.drift.retraining(model=MODEL, fit=fit, data=data),
    ],
    agents=agents,
    tracker=sf.Tracker(),
)
