"""Serves online workflows on a cluster."""
