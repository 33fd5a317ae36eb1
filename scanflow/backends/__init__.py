"""Where applications run: a port, and one folder for each place."""
