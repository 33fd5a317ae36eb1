"""The two functions of the study of serverless platforms, as services: image processing, and reversal of bytes."""

import numpy as np

import scanflow as sf


class Transform:
    """Blurs a picture and turns it, in tens of milliseconds of a core, by a library in C."""

    def predict(self, x):
        picture = x.astype(np.float32)
        for _ in range(20):
            for axis in (1, 2):
                picture = (picture + np.roll(picture, 1, axis) + np.roll(picture, -1, axis)) / 3
        return np.rot90(picture, axes=(1, 2)).round().astype(np.uint8)


class Reverse:
    blocking = False  # it returns at once, so it needs no thread of its own

    def predict(self, x):
        return x[::-1]


idle = sf.Scaling(metric="rps", target=1000, min=0, max=1, polling=1, cool_down=3)
images = sf.Workflow(
    name="images",
    type="online",
    nodes=[sf.Service(name="images", implementation="app.py:Transform", resources=sf.Resources(cpu=1))],
)
reverse = sf.Workflow(
    name="reverse",
    type="online",
    nodes=[sf.Service(name="reverse", implementation="app.py:Reverse", resources=sf.Resources(cpu=1), scaling=idle)],
)

app = sf.Application(name="serverless", team="tutorials", workflows=[images, reverse])
