"""What the server keeps: what is wanted, what was asked for, and what happened. Facts of runs are the backend's."""
