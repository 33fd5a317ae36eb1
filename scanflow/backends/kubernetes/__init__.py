"""A Kubernetes cluster as a backend: plain objects of stock engines, built by pure functions."""
