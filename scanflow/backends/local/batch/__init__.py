"""Batch workflows on this machine.

``backend`` is what callers see, ``journal`` keeps runs in SQLite, ``engine`` drives one: ``schedule`` says what may
start, ``launch`` prepares it. A step is a process under the run's shim (``scanflow.processes``), a fork that calls a
function (``function_process``) or a thread (``function_threads``); ``values`` keeps what it leaves for later ones.
"""
