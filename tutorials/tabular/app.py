"""Predicts who repays a loan: a table, a model of scikit-learn, and agents that retrain it on drift."""

import numpy as np

import scanflow as sf


def people(count, ages, seed):
    """Return loan applicants and whether each repays: by income, and from the age of 50 on by savings."""
    import pandas as pd  # here, and not above: each agent loads this file, and needs no pandas

    draw = np.random.default_rng(seed)
    low, high = ages
    columns = {"age": draw.uniform(low, high, count), "income": draw.lognormal(10.3, 0.4, count)}
    columns |= {"savings": draw.lognormal(9.5, 0.8, count), "loan": draw.lognormal(9.5, 0.6, count)}
    return pd.DataFrame(columns), repays(pd.DataFrame(columns))


def repays(x):
    return np.where(x["age"] < 50, x["income"] > 2 * x["loan"], x["savings"] > x["loan"]).astype(int)


def data():
    return people(5000, ages=(18, 45), seed=0)  # the bank's first customers are young


def fit(x, y):
    from sklearn.ensemble import HistGradientBoostingClassifier

    return HistGradientBoostingClassifier(max_iter=200).fit(x, y)


def ground_truth(items, context):  # here the truth is known; elsewhere people label: scanflow labels
    from scanflow.drift.prediction_data import samples_of

    return {item["id"]: int(y) for item, y in zip(items, repays(samples_of(context.tracker, items)), strict=True)}


loans = sf.Service(name="loans", model="models:/loans@champion")
serve = sf.Workflow(name="serve", type="online", nodes=[loans], serving=sf.Serving(record=1))
flows = [serve, sf.drift.detection(model="loans", budget=200), sf.drift.retraining(model="loans", fit=fit, data=data)]
checker = {"interval_s": 2, "cool_down_s": 10, "labeller": "app.py:ground_truth"}  # once an hour, if left out
agents = [
    sf.Agent(
        name="tracker", template="tracker", parameters={"interval_s": 1, "again_after_s": 5, "min_predictions": 500}
    ),
    sf.Agent(name="checker", template="checker", parameters=checker),
    sf.Agent(name="planner", template="planner", parameters={"interval_s": 2, "cool_down_s": 10, "min_picked": 140}),
    sf.Agent(name="executor", template="executor", parameters={"interval_s": 1, "guard_s": 5}),
]
app = sf.Application(name="tabular", team="datascience", workflows=flows, agents=agents, tracker=sf.Tracker())
