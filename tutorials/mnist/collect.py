"""Fetch what was predicted since the last look, and what to compare it with: the first step of the detector.

Leaves ``new.npy`` (n, 28, 28), what names each of them in ``ids.json``, and ``reference.npy``.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any

import archive
import numpy as np
from serving.pictures import SIDE, NotAPictureError, Pictures

import scanflow as sf
from scanflow.errors import ScanflowError
from scanflow.knowledge import KnowledgeBase
from scanflow_agents.templates.bookmarks import read_json
from scanflow_agents.templates.prediction_data import collect

TOLD = 20


def prepared(part: Any) -> Any:
    """Return what a file recorded as pictures (n, 28, 28) from 0 to 255; NaN is what is none.

    The service takes pictures in several forms and records them as they came, one by itself as its rows or 784 points.
    """
    if part.shape[1:] in {(), (SIDE,), (SIDE, 1)}:
        part = part.reshape(-1, SIDE, SIDE)
    found = np.full((len(part), SIDE, SIDE), np.nan, dtype=np.float32)
    for at, picture in enumerate(part):
        try:
            found[at] = Pictures().transform_input(picture)[0]
        except NotAPictureError:
            continue
    return found


def reference(tracker: KnowledgeBase, known: Any, learnt: str) -> Any:
    """Return pictures like those that the model in use has been made for.

    At first that is what it was trained on; if it was retrained for drifted pictures, those are half of it.
    """
    if not learnt:
        return known
    run_id, _, name = learnt.removeprefix("runs:/").partition("/")
    batches = sorted({str(point["id"]).rpartition(":")[0] for point in read_json(tracker, run_id, name)})
    drifted = collect(tracker, batches, prepare=prepared).x.astype(np.uint8)
    half = np.random.default_rng(1).permutation(len(known))[: len(drifted)]
    return np.concatenate([known[half], drifted])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run_ids", required=True, help="tracked runs with predictions, a JSON list")
    parser.add_argument("--reference", default="", help="what the model in use has learnt since: runs:/ID/labels.json")
    arguments = parser.parse_args()
    run_ids = json.loads(arguments.run_ids)
    try:
        tracker = archive.tracker()
        new = collect(tracker, run_ids, prepare=prepared)
        kept = archive.pictures(tracker, os.environ["SCANFLOW_APP"], os.environ["SCANFLOW_TEAM"])
        known = reference(tracker, kept["x_reference"], arguments.reference)
    except ScanflowError as error:
        sys.exit(f"Error: {error}")

    folder = sf.output_dir()
    np.save(folder / "new.npy", new.x.astype(np.uint8))
    np.save(folder / "reference.npy", known)
    (folder / "ids.json").write_text(json.dumps(new.ids), encoding="utf-8")
    print(f"{len(new.x):,} new pictures from {len(run_ids)} files, to be compared with {len(known):,}")
    if new.left_out:
        rest = [f"and {len(new.left_out) - TOLD} more files"] if len(new.left_out) > TOLD else []
        print(f"Left out, as they are no pictures: {new.n_left_out:,}", *new.left_out[:TOLD], *rest, sep="\n  ")
    sf.output("n_left_out", new.n_left_out)
    sf.output("run_ids", run_ids)  # the ones left out too: they were looked at


if __name__ == "__main__":
    main()
