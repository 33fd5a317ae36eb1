"""The granularity of MPI jobs, and the placement of workers and ranks (thesis chapters 3 and 6). Pure."""
