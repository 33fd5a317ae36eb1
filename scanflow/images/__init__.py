"""Container images: what an application's nodes run in, described by pure functions and built by programs."""
