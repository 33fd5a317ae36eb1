"""The control plane: what should run, what does, and who may change it, over HTTP."""
