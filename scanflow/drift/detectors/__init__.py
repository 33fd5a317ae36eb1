"""Detectors of drift: they decide whether new data differs from the training data, and which samples differ.

``catalogue`` makes, fits and reads one by name, ``detector_port`` says what all promise.
"""
