"""Test helpers, for us and for users: contract suites that every implementation of a port passes. Needs pytest."""
