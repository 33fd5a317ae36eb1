"""Service specs: built from applications."""
