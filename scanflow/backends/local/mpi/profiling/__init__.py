"""Profiling of MPI programs by a short run: time in MPI, messages, and memory traffic."""
