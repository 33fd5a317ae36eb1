"""The loop of ``loop.py`` with small networks of scikit-learn, for images without TensorFlow, such as scanflow/server.

Same steps, same agents; a cluster with little room is enough: nothing has cores of its own.
"""

from app import cnn, cnn1, cnn2, load, pictures, select
from loop import MODEL
from loop import agents as asked

import scanflow as sf

little = sf.Resources(memory="1Gi")


def learning(step: sf.Executor, units: int) -> sf.Executor:
    """Return the step with a small network in its place."""
    paths = {name: path for name, path in step.parameters.items() if name.endswith("_path")}
    parameters = {"units": units, "trained_on": load["source"], **paths}
    return step.replace(mainfile="steps/smallmodel.py", parameters=parameters, resources=little)


loaded, one, other = load.replace(resources=little), learning(cnn1, 32), learning(cnn2, 64)
selected = select.replace(resources=little)
train = sf.Workflow(
    name="mnist-wf",
    nodes=[loaded, one, other, selected],
    edges=loaded >> [one, other] >> selected,
    output_dir="/workflow",
)
served = cnn.replace(instances=1, resources=little, affinity="any")
serve = sf.Workflow(name="serve", type="online", nodes=[pictures, served], edges=pictures >> served)
serve = serve.replace(serving=sf.Serving(record=1))
detector = sf.drift.detection(
    model=MODEL,
    detector="table",
    prepare="serving/pictures.py:prepared",
    budget=500,
    evaluation_share=0.5,
    resources=little,
)
training = sf.drift.retraining(
    model=MODEL, fit="smallnet.py:fit", evaluation_share=0.5, train_size=4000, resources=little
)
agents = [
    one.replace(parameters={**one.parameters, "detector": "table"}) if one.name == "checker" else one for one in asked
]

app = sf.Application(
    name="mnist", team="datascience", workflows=[train, serve, detector, training], agents=agents, tracker=sf.Tracker()
)
