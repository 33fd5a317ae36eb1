"""Agents on a cluster: one pod each."""
