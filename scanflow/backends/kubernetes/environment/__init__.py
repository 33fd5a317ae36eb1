"""An application's environment: the namespace in which its runs, services and agents are, and what these share."""
