"""Tables from files, read by their values and not by how these are written."""
