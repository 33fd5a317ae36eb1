"""MPI jobs on a simulated cluster: what a way to cut and place them is worth, before it is tried. Pure."""
