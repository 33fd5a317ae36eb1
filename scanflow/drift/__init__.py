"""Drift: whether new data is still what a model was made for, and whether a model is better than the one in use."""
