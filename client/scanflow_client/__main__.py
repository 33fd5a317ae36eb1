"""``python -m scanflow_client``: the command line, where no script was installed."""

from scanflow_client.cli.main import main

main()
