"""Batch workflows on this machine.

``backend`` is what callers see, ``engine`` drives one run, ``launch`` prepares its tasks. A step is a process under the
run's shim (``scanflow.processes``), a fork that calls a function (``function_process``) or a thread
(``function_threads``).
"""
