"""The embedded backend: steps as processes of this machine, under shims that outlive their starter."""
