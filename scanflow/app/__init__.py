"""The application model: what a user describes. Frozen, checked when made, no input or output."""
