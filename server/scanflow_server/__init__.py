"""The control plane: desired state, observed state and access control, over HTTP."""
