"""Handwritten digits: load them, train two networks side by side, register the better one, and serve it."""

import scanflow as sf

load = sf.Executor(
    name="load-data",
    mainfile="steps/loaddata.py",
    parameters={"data": "digits"},  # or "mnist", or the path of an .npz file
    resources=sf.Resources(cpu=1, memory="1Gi"),
)


def modeling(name: str, architecture: str, epochs: int) -> sf.Executor:
    """Return a step that trains one network; the script is the same for all of them."""
    return sf.Executor(
        name=name,
        mainfile="steps/modeling.py",
        parameters={
            "architecture": architecture,
            "epochs": epochs,
            "trained_on": load["source"],
            "x_train_path": "/workflow/load-data/x_train.npy",
            "y_train_path": "/workflow/load-data/y_train.npy",
            "x_test_path": "/workflow/load-data/x_test.npy",
            "y_test_path": "/workflow/load-data/y_test.npy",
        },
        resources=sf.Resources(cpu=1, memory="2Gi"),
    )


cnn1 = modeling("modeling-cnn1", "lenet", epochs=4)
cnn2 = modeling("modeling-cnn2", "vgg", epochs=4)

select = sf.Executor(
    name="select",
    mainfile="steps/selectmodel.py",
    parameters={
        "model_name": "mnist_cnn",
        "accuracy_cnn1": cnn1["accuracy"],
        "accuracy_cnn2": cnn2["accuracy"],
        "model_cnn1": cnn1["model_uri"],
        "model_cnn2": cnn2["model_uri"],
        "trained_on": load["source"],
        "dataset_path": "/workflow/load-data/dataset.npz",  # for those who watch over the model later: see loop.py
    },
    resources=sf.Resources(cpu=1, memory="1Gi"),
)

train = sf.Workflow(
    name="mnist-wf", nodes=[load, cnn1, cnn2, select], edges=load >> [cnn1, cnn2] >> select, output_dir="/workflow"
)

pictures = sf.Service(name="pictures", role="TRANSFORMER", implementation="serving/pictures.py:Pictures")

cnn = sf.Service(
    name="cnn",
    model="models:/mnist_cnn@champion",
    instances=2,
    resources=sf.Resources(cpu=1, memory="1Gi"),
    affinity="cpu",  # each instance has its core to itself
)

serve = sf.Workflow(name="serve", type="online", nodes=[pictures, cnn], edges=pictures >> cnn)

app = sf.Application(name="mnist", team="datascience", workflows=[train, serve], tracker=sf.Tracker())
