"""Drawings for pages, notebooks and reports: pure functions from values to positions and SVG."""
