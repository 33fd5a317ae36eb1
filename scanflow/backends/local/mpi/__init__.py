"""MPI jobs on this machine: one step that runs ``mpirun``, under a shim like every step."""
