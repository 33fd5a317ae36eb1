"""What tests share, ours and users': contract suites that every implementation of a port passes. Needs pytest."""
