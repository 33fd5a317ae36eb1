"""Programs that experiments run and serve: examples, and no part of the library."""
