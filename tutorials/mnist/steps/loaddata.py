"""Load the digits, check them, and write them to this step's output folder for the training steps."""

from __future__ import annotations

import argparse
import os
import sys

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # Keras downloads "mnist"; TensorFlow need not greet us for that

import digits

import scanflow as sf


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="digits", help="'digits', 'mnist', or the path of an .npz file")
    arguments = parser.parse_args()

    try:
        data, description = digits.load(arguments.data)
    except digits.BadDataError as error:
        sys.exit(f"Error: {error}")

    for name in digits.SPLIT_KEYS:
        np.save(sf.output_dir() / f"{name}.npy", getattr(data, name))
    np.savez(sf.output_dir() / "dataset.npz", **digits.in_use(data))

    print(f"Data: {description}")
    print(f"{len(data.x_train):,} digits to train on, {len(data.x_test):,} to test on")
    sf.output("source", description)
    sf.output("train_size", len(data.x_train))
    sf.output("test_size", len(data.x_test))


if __name__ == "__main__":
    main()
