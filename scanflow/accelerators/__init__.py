"""Which GPUs there are, who uses them, and how one can be shared."""
