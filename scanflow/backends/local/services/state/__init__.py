"""The desired and observed state of a service: files shared by commands and its supervisor."""
