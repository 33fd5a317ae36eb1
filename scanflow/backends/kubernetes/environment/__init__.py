"""An application's environment: the namespace of its runs, services and agents, and the objects that these share."""
