"""Files and folders: private files, growing files, disk errors, cached reads."""
