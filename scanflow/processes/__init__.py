"""Processes on this machine: started under a shim, named, pinned to CPUs, locked against one another, and spoken to."""
