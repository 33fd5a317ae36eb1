"""A model of a table: the workflow `training` trains and registers it, the workflow `serve` answers requests with it."""

import scanflow as sf

MODEL = "my-app"


def draw_loans(count, seed):
    """Return a table of loans, and for each of them whether it is repaid. Read your own table here."""
    import numpy as np
    import pandas as pd

    draw = np.random.default_rng(seed)
    table = pd.DataFrame(
        {
            "income": draw.lognormal(10, 0.4, count),
            "loan": draw.lognormal(9, 0.6, count),
        }
    )
    return table, (table["income"] > 2 * table["loan"]).astype(int)


def fit(x, y, trees):
    from sklearn.ensemble import RandomForestClassifier

    return RandomForestClassifier(n_estimators=trees, random_state=0).fit(x, y)


@sf.step
def train(rows: int = 1000, trees: int = 50) -> dict[str, float]:
    """Train a model, register it with its signature, and make its version the one in use."""
    import mlflow

    x, y = draw_loans(rows, seed=0)
    x_test, y_test = draw_loans(500, seed=1)
    model = fit(x, y, trees)
    accuracy = float(model.score(x_test, y_test))
    with mlflow.start_run():
        mlflow.log_params({"rows": rows, "trees": trees})
        mlflow.log_metric("accuracy", accuracy)
        logged = mlflow.sklearn.log_model(
            model,
            name="model",
            registered_model_name=MODEL,
            signature=mlflow.models.infer_signature(x, model.predict(x)),
            input_example=x[:2],
            serialization_format="cloudpickle",
        )
    version = int(logged.registered_model_version)
    mlflow.MlflowClient().set_registered_model_alias(MODEL, "champion", version)
    return {"version": version, "accuracy": accuracy}


loans = sf.Service(name="loans", model=f"models:/{MODEL}@champion")
app = sf.Application(
    name="my-app",
    workflows=[
        sf.Workflow(name="training", nodes=[train.bind()]),
        sf.Workflow(name="serve", type="online", nodes=[loans]),
    ],
    tracker=sf.Tracker(),
)
