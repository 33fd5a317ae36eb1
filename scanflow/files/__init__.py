"""Files and folders: private ones, those that grow, errors of the disk, reads kept while nothing is written."""
