"""Searches for the best granularity and affinity of a service by measuring: thesis 4.2 and 4.4."""
