"""MPI jobs on this machine: one step that runs ``mpirun``, under the supervision that every step has."""
