"""Batch workflows on Argo Workflows.

``workflow`` builds the manifest and ``step`` is the program in a step's pod; ``signals`` says what the one tells the
other at run time, ``records`` reads what Argo tells of a run, ``driving`` watches it, and ``backend`` is what callers
see.
"""
