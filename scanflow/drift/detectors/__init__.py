"""Detectors of drift: does new data look like what the model was trained on, and which samples do not?

``catalogue`` makes one by name, ``port`` says what all of them promise, ``critical`` picks what a person should label.
"""
