"""MPI jobs on a simulated cluster: compares ways to cut and place them before they are run. Pure."""
