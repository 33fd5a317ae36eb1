"""Migration steps, named by their number."""
