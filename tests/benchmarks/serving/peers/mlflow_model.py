"""The same for ``mlflow models serve``: ``mlflow_model.py FOLDER`` saves a model that answers what it was asked."""

import sys

import mlflow.pyfunc


class Noop(mlflow.pyfunc.PythonModel):
    def predict(self, context, model_input, params=None):
        return model_input


if __name__ == "__main__":
    mlflow.pyfunc.save_model(sys.argv[1], python_model=Noop(), pip_requirements=["mlflow"])
