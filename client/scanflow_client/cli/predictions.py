"""The command ``predict``: rows from the command line, a file or standard input to a service, and its response."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from scanflow_client.cli.options import JsonOption, ServiceArgument, deployer
from scanflow_client.cli.output import say, write_blocks


def predict(
    name: ServiceArgument,
    file: Annotated[
        str | None, typer.Argument(metavar="[FILE|-]", help="A .npy, .npz or .json file, or any other as raw bytes.")
    ] = None,
    data: Annotated[str | None, typer.Option("--data", metavar="JSON", help="Rows: '[[1, 2, 3]]'.")] = None,
    npy: Annotated[Path | None, typer.Option("--npy", metavar="FILE", help="An array that NumPy saved.")] = None,
    node: Annotated[str | None, typer.Option("--node", metavar="NODE", help="One node of the graph alone.")] = None,
    dtype: Annotated[
        str | None, typer.Option("--dtype", metavar="TYPE", help="Send numbers as float32, uint8, ... Default: as is.")
    ] = None,
    seldon: Annotated[bool, typer.Option("--seldon", help="Use Seldon's protocol.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Request a prediction from a service."""
    from scanflow_client.predict_io import read_request, response_lines, send

    request = read_request(file=file, data=data, npy=npy, stdin=sys.stdin.buffer)
    response = send(deployer(), name, request, node=node, dtype=dtype, seldon=seldon)
    if isinstance(response, bytes):
        write_blocks(iter([response]), raw=False)
    else:
        say(*response_lines(response, as_json=as_json))
