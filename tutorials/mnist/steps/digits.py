"""Sources of handwritten digits, and checks of the data before training."""

from __future__ import annotations

import socket
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

SPLIT_KEYS = ("x_train", "y_train", "x_test", "y_test")
WHOLE_KEYS = ("x", "y")
TRAIN_SHARE = 0.8
SENT_SHARE = 0.75  # of the test pictures, what is sent to the model in use; the others are to judge it by
SEED = 7  # of the split, so that everybody trains and tests on the same pictures
DOWNLOAD_TIMEOUT_S = 30
NEEDED = "values must be integers from 0 to 255, or fractions from 0 to 1"


class BadDataError(ValueError):
    """Invalid data; the message says what is wrong and what to do."""


class Digits(NamedTuple):
    """Pictures (n, 28, 28) and labels (n,), both uint8."""

    x_train: NDArray[np.uint8]
    y_train: NDArray[np.uint8]
    x_test: NDArray[np.uint8]
    y_test: NDArray[np.uint8]
    shuffled: bool = False
    """Whether we split them, at random; else the test pictures may be of other people than the training pictures."""


def class_of(label: Any) -> int | None:
    """Return the digit of a label: ``7``, ``"7"``; None: the label is not a digit."""
    try:
        value = float(str(label))
    except ValueError:
        return None
    return int(value) if value.is_integer() and 0 <= value <= 9 else None


def load(source: str) -> tuple[Digits, str]:
    """Return the digits of a source (``digits``, ``mnist`` or an ``.npz`` file), and a description of them."""
    if source == "digits":
        return bundled_digits(), "scikit-learn's digits, enlarged from 8x8 to 28x28"
    if source == "mnist":
        return full_mnist(), "MNIST, all of it"
    if source.endswith(".npz"):
        path = Path(source).expanduser().absolute()
        return from_npz(path), str(path)
    raise BadDataError(f"data={source!r} is not known. Use 'digits', 'mnist', or the path of a file that ends in .npz.")


def bundled_digits() -> Digits:
    """Return the 1,797 digits that come with scikit-learn: nothing to download."""
    sklearn = find_spec("sklearn")  # found but not imported: that takes seconds, and all we want is a file of it
    if sklearn is None or sklearn.origin is None:
        raise BadDataError("data='digits' comes with scikit-learn, which is not installed: pip install scikit-learn.")
    table = np.loadtxt(Path(sklearn.origin).parent / "datasets" / "data" / "digits.csv.gz", delimiter=",")
    small = (table[:, :64].reshape(-1, 8, 8) * 255 / 16).astype(np.uint8)
    labels = table[:, 64].astype(np.uint8)
    large = small.repeat(3, axis=1).repeat(3, axis=2)  # 24 x 24, and a margin of 2 as MNIST's pictures have one
    return split(np.pad(large, ((0, 0), (2, 2), (2, 2))), labels)


def full_mnist() -> Digits:
    """Return MNIST's 70,000 digits: Keras downloads them once (11 MB) and keeps them in ``~/.keras``."""
    from tensorflow import keras

    socket.setdefaulttimeout(DOWNLOAD_TIMEOUT_S)  # Keras itself would wait for ever
    try:
        (x_train, y_train), (x_test, y_test) = keras.datasets.mnist.load_data()
    except Exception as error:  # Keras raises a plain Exception when a download fails
        raise BadDataError(
            f"MNIST could not be downloaded ({error}). Without a network, use data=digits, or the path of an .npz file."
        ) from error
    return Digits(x_train, y_train, x_test, y_test)


def from_npz(path: Path) -> Digits:
    """Return the digits of a file with ``x_train, y_train, x_test, y_test``, or with ``x, y``, split 80/20."""
    arrays = read_npz(path)
    if all(key in arrays for key in SPLIT_KEYS):
        x_train, y_train = checked(path, arrays, "x_train", "y_train")
        x_test, y_test = checked(path, arrays, "x_test", "y_test")
        return Digits(x_train, y_train, x_test, y_test)
    x, y = checked(path, arrays, "x", "y")
    if len(x) < 2:
        raise BadDataError(f"{path} has one picture; at least two are needed, to train on one and test on the other.")
    return split(x, y)


def split(x: NDArray[np.uint8], y: NDArray[np.uint8]) -> Digits:
    """Shuffle, and return four fifths to train on and one fifth to test on."""
    order = np.random.default_rng(SEED).permutation(len(x))
    train, test = np.split(order, [int(len(x) * TRAIN_SHARE)])
    return Digits(x[train], y[train], x[test], y[test], shuffled=True)


def in_use(data: Digits) -> dict[str, NDArray[Any]]:
    """Return the arrays that are needed when a model is in use, by name.

    The test pictures are parted at random: ``x_sent``, ``y_sent`` and their places ``sent_rows`` are for the service,
    ``x_clean`` and ``y_clean`` to evaluate models by. ``x_reference`` is for detectors: as like those sent as can be.
    """
    order = np.random.default_rng(SEED).permutation(len(data.x_test))
    sent, kept = np.split(order, [int(len(order) * SENT_SHARE)])
    return {
        "x_train": data.x_train,
        "y_train": data.y_train,
        "x_clean": data.x_test[kept],
        "y_clean": data.y_test[kept],
        "x_sent": data.x_test[sent],
        "y_sent": data.y_test[sent],
        "sent_rows": sent,
        "x_reference": data.x_train if data.shuffled else data.x_test[kept],
    }


def read_npz(path: Path) -> dict[str, NDArray[Any]]:
    if not path.is_file():
        raise BadDataError(f"There is no file {path}. Relative paths start at the application's folder.")
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            keys = next((keys for keys in (SPLIT_KEYS, WHOLE_KEYS) if set(keys) <= set(arrays.files)), None)
            if keys is None:
                raise BadDataError(
                    f"{path} has the arrays {', '.join(arrays.files) or '(none)'}; it must have either "
                    f"{', '.join(SPLIT_KEYS)}, or {' and '.join(WHOLE_KEYS)}."
                )
            return {key: np.asarray(arrays[key]) for key in keys}
    except BadDataError:
        raise
    except Exception as error:  # a damaged file makes numpy raise any of a dozen types
        raise BadDataError(f"{path} cannot be read as an .npz file ({error}). Write it with numpy.savez.") from error


def checked(path: Path, arrays: dict[str, NDArray[Any]], x_key: str, y_key: str) -> tuple[Any, Any]:
    x, y = arrays[x_key], arrays[y_key]
    if x.ndim == 4 and x.shape[-1] == 1:
        x = x[..., 0]
    if x.ndim != 3 or x.shape[1:] != (28, 28):
        raise BadDataError(f"{path}: {x_key} has the shape {x.shape}; it must be (n, 28, 28) or (n, 28, 28, 1).")
    if y.shape != (len(x),):
        raise BadDataError(
            f"{path}: {y_key} has the shape {y.shape}; it must be ({len(x)},), a label for each picture."
        )
    if len(x) == 0:
        raise BadDataError(f"{path}: {x_key} is empty.")
    return as_pictures(f"{path}: {x_key}", x), as_labels(f"{path}: {y_key}", y)


def as_pictures(what: str, x: NDArray[Any]) -> NDArray[np.uint8]:
    """Return pictures as uint8: integers are 0 to 255 already, fractions are 0 to 1."""
    if x.dtype.kind not in "iuf":
        raise BadDataError(f"{what} holds {x.dtype}; {NEEDED}.")
    if not np.isfinite(x).all():
        bad = np.flatnonzero(~np.isfinite(x).all(axis=(1, 2)))
        raise BadDataError(f"{what} has NaN or infinite values in {len(bad)} of {len(x)} pictures, first in {bad[0]}.")
    low, high = float(x.min()), float(x.max())
    top = 1 if x.dtype.kind == "f" else 255
    if low < 0 or high > top:
        raise BadDataError(f"{what} holds {x.dtype} from {low:g} to {high:g}; {NEEDED}.")
    if high * 255 <= top:  # all black, or fractions that were cut down to 0 and 1
        raise BadDataError(f"{what} holds {x.dtype} up to {high:g} only, so all pictures are black; {NEEDED}.")
    return np.rint(x * 255).astype(np.uint8) if top == 1 else x.astype(np.uint8)


def as_labels(what: str, y: NDArray[Any]) -> NDArray[np.uint8]:
    if y.dtype.kind not in "iu":
        raise BadDataError(f"{what} holds {y.dtype}; labels must be integers from 0 to 9.")
    if y.min() < 0 or y.max() > 9:
        raise BadDataError(f"{what} has labels from {y.min()} to {y.max()}; labels must be 0 to 9.")
    return y.astype(np.uint8)
