"""The digits with agents that watch the model: they detect drift, retrain, and promote a better model.

The same training and the same service as in ``app.py``, and two more workflows, which the agents run. Intervals are
seconds here, so that the loop can be watched; leave them out, and the agents look once an hour.
"""

from app import serve as asked
from app import train

import scanflow as sf

MODEL = "mnist_cnn"

detector = sf.drift.detection(
    model=MODEL,
    detector="default",  # by the kind of data; or autoencoder, table, prior
    prepare="serving/pictures.py:prepared",
    budget=500,
    evaluation_share=0.5,  # half of the labels: so that a gain of some points is told from chance
    resources=sf.Resources(cpu=1, memory="2Gi"),
)
training = sf.drift.retraining(
    model=MODEL,
    fit="retrain.py:fit",
    evaluation_share=0.5,
    train_size=4000,
    resources=sf.Resources(cpu=1, memory="2Gi"),
)
serve = asked.replace(serving=sf.Serving(record=1))  # every prediction is kept, for the tracker to count

agents = [
    sf.Agent(
        name="tracker", template="tracker", parameters={"interval_s": 1, "min_predictions": 500, "again_after_s": 5}
    ),
    sf.Agent(
        name="checker",
        template="checker",
        parameters={"interval_s": 2, "cool_down_s": 15, "labeller": "labelling.py:ground_truth"},
    ),
    sf.Agent(
        name="planner",
        template="planner",
        parameters={"interval_s": 2, "cool_down_s": 10, "min_picked": 120, "margin": 0.02},  # few digits are clean
    ),
    sf.Agent(name="executor", template="executor", parameters={"interval_s": 1, "guard_s": 5, "settle_s": 1}),
]

app = sf.Application(
    name="mnist", team="datascience", workflows=[train, serve, detector, training], agents=agents, tracker=sf.Tracker()
)
