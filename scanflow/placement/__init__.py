"""Which cores and memory an instance gets, and how many threads: pure algorithms over a description of a machine.

Only :mod:`scanflow.placement.sysfs` and :mod:`scanflow.placement.available_cpus` read files, and only below the roots
they are given. Nothing here changes anything: :mod:`scanflow.processes.pinning` does.
"""
