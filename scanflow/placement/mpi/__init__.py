"""How an MPI job is cut into workers, and where its workers and ranks go (thesis chapters 3 and 6). Pure."""
