"""The command ``predict``: rows from the command line, a file or standard input to a service, and its answer back."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from scanflow_client.cli.app import JsonOption, app, deployer

__all__: list[str] = []


@app.command()
def predict(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The service: its workflow's name.")],
    file: Annotated[
        str | None, typer.Argument(metavar="[FILE|-]", help="A .npy, .npz or .json file, or any other as raw bytes.")
    ] = None,
    data: Annotated[str | None, typer.Option("--data", metavar="JSON", help="Rows: '[[1, 2, 3]]'.")] = None,
    npy: Annotated[Path | None, typer.Option("--npy", metavar="FILE", help="An array that NumPy saved.")] = None,
    node: Annotated[str | None, typer.Option("--node", metavar="NODE", help="Ask one node of the graph alone.")] = None,
    dtype: Annotated[
        str | None, typer.Option("--dtype", metavar="TYPE", help="Send numbers as float32, uint8, ... Default: as is.")
    ] = None,
    seldon: Annotated[bool, typer.Option("--seldon", help="Speak Seldon's protocol.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Ask a service for a prediction."""
    from scanflow_client.questions import answer_lines, ask, read_question

    question = read_question(file=file, data=data, npy=npy, stdin=sys.stdin.buffer)
    answer = ask(deployer(), name, question, node=node, dtype=dtype, seldon=seldon)
    if isinstance(answer, bytes):
        sys.stdout.buffer.write(answer)
        sys.stdout.buffer.flush()
    else:
        typer.echo("\n".join(answer_lines(answer, as_json=as_json)))
