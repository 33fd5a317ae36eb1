"""MPI jobs as objects of Volcano and of the MPI Operator, from the plan that every launcher carries out."""
