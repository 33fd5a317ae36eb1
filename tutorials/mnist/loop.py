"""The digits again, now with agents that watch over the model: they see drift, retrain, and put a better model to use.

The same training and the same service as in ``app.py``, and two more workflows, which the agents run. Intervals are
seconds here, so that the loop can be watched; leave them out, and the agents look once an hour.
"""

from app import serve as asked
from app import train

import scanflow as sf

MODEL = "mnist_cnn"

collect = sf.Executor(
    name="collect",
    mainfile="collect.py",
    parameters={"run_ids": [], "reference": ""},
    resources=sf.Resources(cpu=1, memory="1Gi"),
)

detect = sf.Executor(
    name="detect",
    mainfile="detect.py",
    parameters={
        "new_path": "/workflow/collect/new.npy",
        "ids_path": "/workflow/collect/ids.json",
        "reference_path": "/workflow/collect/reference.npy",
        "detector": "default",  # by the kind of data; or autoencoder, table, prior
        "model_uri": f"models:/{MODEL}@champion",
        "picks": 200,
    },
    resources=sf.Resources(cpu=1, memory="2Gi"),
)

gather = sf.Executor(
    name="gather", mainfile="gather.py", parameters={"labels": ""}, resources=sf.Resources(cpu=1, memory="1Gi")
)

retrain = sf.Executor(
    name="retrain",
    mainfile="retrain.py",
    parameters={
        "model_uri": f"models:/{MODEL}@champion",
        "model_name": MODEL,
        "picked_path": "/workflow/gather/picked.npz",
        "x_train_path": "/workflow/gather/x_train.npy",
        "y_train_path": "/workflow/gather/y_train.npy",
        "x_test_path": "/workflow/gather/x_judged.npy",
        "y_test_path": "/workflow/gather/y_judged.npy",
    },
    resources=sf.Resources(cpu=1, memory="2Gi"),
)

detector = sf.Workflow(name="detector", nodes=[collect, detect], edges=collect >> detect, output_dir="/workflow")
training = sf.Workflow(name="training", nodes=[gather, retrain], edges=gather >> retrain, output_dir="/workflow")
serve = asked.replace(serving=sf.Serving(record=1))  # every prediction is kept, for the tracker to count

agents = [
    sf.Agent(
        name="tracker", template="tracker", parameters={"interval_s": 1, "min_predictions": 500, "again_after_s": 5}
    ),
    sf.Agent(
        name="checker",
        template="checker",
        parameters={
            "interval_s": 2,
            "cool_down_s": 15,
            "model_name": MODEL,
            "reference_parameter": "reference",
            "labeller": "labelling.py:ground_truth",
        },
    ),
    sf.Agent(name="planner", template="planner", parameters={"interval_s": 2, "cool_down_s": 10, "min_picked": 100}),
    sf.Agent(name="executor", template="executor", parameters={"interval_s": 1, "guard_s": 5, "settle_s": 1}),
]

app = sf.Application(
    name="mnist", team="datascience", workflows=[train, serve, detector, training], agents=agents, tracker=sf.Tracker()
)
