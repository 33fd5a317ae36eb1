"""Which cores and memory an instance gets, and how many threads. Nothing here changes anything."""
