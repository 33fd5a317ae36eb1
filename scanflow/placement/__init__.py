"""The placement of instances: cores, memory and threads. Nothing here changes anything."""
