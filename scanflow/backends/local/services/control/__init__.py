"""Control connections to supervisors and instances."""
