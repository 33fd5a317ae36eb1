"""Scanflow measured beside Metaflow, Prefect and bare Python: ``python -m tests.benchmarks``. No tests."""
