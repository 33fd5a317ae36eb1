"""What bounds an MPI program, found by a short run of it: the time in MPI, what it sends, and its memory traffic."""
