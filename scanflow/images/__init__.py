"""Container images of an application's nodes, described by pure functions and built by external programs."""
