"""``scanflow demo``: the MNIST tutorial, driven from a trained model to a promoted one."""
