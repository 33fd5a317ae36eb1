"""Load on a service: when requests are due, the process that sends them, and the result of each."""
