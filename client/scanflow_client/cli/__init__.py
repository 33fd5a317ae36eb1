"""The command line ``scanflow``. Each command imports its dependencies when it runs, so that ``--help`` is fast."""
