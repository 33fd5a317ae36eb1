"""ResNet50 with random weights: what a model of its size costs, whatever it was trained on."""

from typing import Any

import scanflow as sf


class ResNet:
    def load(self) -> None:
        import keras
        import tensorflow as tf

        keras.utils.set_random_seed(1)
        model = keras.applications.ResNet50(weights=None)
        self._call = tf.function(lambda images: model(images, training=False))
        self._call(tf.zeros((1, 224, 224, 3)))

    def predict(self, X: Any) -> Any:
        import tensorflow as tf

        return self._call(tf.convert_to_tensor(X)).numpy()


resnet = sf.Workflow(
    name="resnet",
    type="online",
    nodes=[sf.Service(name="resnet", implementation="app.py:ResNet")],
    serving=sf.Serving(grpc_port=0),
)

app = sf.Application(name="bench", team="bench", workflows=[resnet])
