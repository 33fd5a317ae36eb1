"""Backends that run applications: a port, and one package for each backend."""
