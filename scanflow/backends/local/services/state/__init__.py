"""What is wanted of a service, and how it stands: the files that commands and its supervisor share."""
