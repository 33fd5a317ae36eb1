"""Detectors of drift: does new data look like what the model was trained on, and which samples do not?

``catalogue`` makes, fits and reads one by name, ``port`` says what all promise, ``critical`` picks what to label.
"""
