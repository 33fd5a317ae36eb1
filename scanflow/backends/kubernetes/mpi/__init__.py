"""MPI jobs as objects of Volcano and of the MPI Operator, built from the common plan of all launchers."""
