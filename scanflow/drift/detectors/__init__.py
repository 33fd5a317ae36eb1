"""Detectors of drift: they decide whether new data differs from the training data, and which samples differ.

``catalogue`` makes, fits and reads one by name, ``port`` says what all promise, ``critical`` picks what to label.
"""
