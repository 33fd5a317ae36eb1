"""Load on a service: when requests are due, the process that sends them, and what became of each."""
