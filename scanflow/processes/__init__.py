"""Local processes: started under a shim, identified, pinned to CPUs, with file locks, ports and control sockets."""
