"""The clients for people: Python, the thesis' spelling, and the command line."""
