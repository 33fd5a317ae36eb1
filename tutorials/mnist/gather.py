"""Fetch labelled points, and the pictures to train and judge with them: the first step of retraining.

Leaves ``picked.npz`` (x, y), and ``x_train.npy``, ``y_train.npy``, ``x_judged.npy``, ``y_judged.npy``.
"""

from __future__ import annotations

import argparse
import os
import sys

import archive
import numpy as np
from steps.digits import class_of

import scanflow as sf
from scanflow.errors import ScanflowError
from scanflow_agents.templates.bookmarks import LABELS_FILE, read_json
from scanflow_agents.templates.prediction_data import labelled

TOLD = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--labels", required=True, help="the tracked run with the labelled points")
    arguments = parser.parse_args()
    try:
        tracker = archive.tracker()
        x, y = labelled(tracker, arguments.labels)
        wrong = [one for one in read_json(tracker, arguments.labels, LABELS_FILE) if class_of(one["label"]) is None]
        kept = archive.pictures(tracker, os.environ["SCANFLOW_APP"], os.environ["SCANFLOW_TEAM"])
    except ScanflowError as error:
        sys.exit(f"Error: {error}")

    folder = sf.output_dir()
    np.savez(folder / "picked.npz", x=x.reshape(-1, 28, 28), y=y)
    for name in ("x_train", "y_train", "x_judged", "y_judged"):
        np.save(folder / f"{name}.npy", kept[name])
    print(f"{len(x):,} labelled points, beside {len(kept['x_train']):,} pictures known before")
    for point in wrong[:TOLD]:
        print(f"{point['id']} is labelled {point['label']!r}, which is no digit, and is going to be left out")
    if len(wrong) > TOLD:
        print(f"and {len(wrong) - TOLD} more")
    sf.output("labels", arguments.labels)


if __name__ == "__main__":
    main()
