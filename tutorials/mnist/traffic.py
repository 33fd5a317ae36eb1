"""Send clean or drifted digits to the service, one per request, and count correct predictions.

What is sent was kept from the training. Its labels go to the knowledge base, where the labeller finds them. While it
runs it takes lines of the form ``clean 50`` or ``drifted 4`` (what to send, and digits a second) and writes what
was answered as JSON, a line a second; it ends with its input, or after ``--count``.

    python traffic.py --url http://127.0.0.1:46700 --send drifted --rate 20 --count 500
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any

import archive
import corruptions
import numpy as np

from scanflow.drift.prediction_data import step_tracker
from scanflow.errors import ScanflowError
from scanflow.transport import HttpServiceClient

CALLERS = 4
MAX_RATE = 1000.0
KINDS = ("clean", "drifted")
SEED = 11


@dataclass
class Order:
    """The digits to send; another thread may change them."""

    kind: str
    rate: float
    ended: threading.Event = field(default_factory=threading.Event)

    def take(self, line: str) -> None:
        kind, _, rate = line.strip().partition(" ")
        if kind not in KINDS or not 0 < float(rate) <= MAX_RATE:
            raise ValueError(f"{line!r}: write clean or drifted, and the digits a second, up to {MAX_RATE:.0f}")
        self.kind, self.rate = kind, float(rate)


class Tally:
    """Counts of responses, by kind of digits and by revision of the service."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)

    def count(self, kind: str, revision: str, result: str) -> None:
        with self._lock:
            self._counts[kind, revision][result] += 1

    def line(self) -> str:
        with self._lock:
            rows = [
                {"kind": kind, "revision": revision, **{name: counts[name] for name in ("right", "wrong", "failed")}}
                for (kind, revision), counts in self._counts.items()
            ]
        return json.dumps({"at": time.time(), "sent": rows})


def drifted_pictures(path: str, kept: dict[str, Any], test_labels: int) -> tuple[Any, Any]:
    """Return drifted pictures and their labels: of MNIST-C's file, or generated from those that are kept for sending.

    Where the file's pictures are the test pictures one by one, only those that no model is judged by are taken.
    """
    if not path:
        x, _ = corruptions.mixed(kept["x_sent"], seed=SEED)
        return x, kept["y_sent"]
    with np.load(path, allow_pickle=False) as arrays:
        y = arrays["y"]
        kinds = {name: arrays[name] for name in arrays.files if name != "y"}
    if not kinds or any(x.shape != (len(y), 28, 28) for x in kinds.values()):
        sys.exit(f"Error: {path} needs labels y (n,) and, for each corruption, pictures (n, 28, 28).")
    rows = kept["sent_rows"] if len(y) == test_labels and (y[kept["sent_rows"]] == kept["y_sent"]).all() else None
    if rows is None:
        rows = np.arange(len(y))
    return np.concatenate([x[rows] for x in kinds.values()]), np.tile(y[rows], len(kinds))


def shuffled(x: Any, y: Any) -> Iterator[tuple[Any, int]]:
    """Yield pictures with their labels in random order, endlessly."""
    return cycle([(x[at], int(y[at])) for at in np.random.default_rng(SEED).permutation(len(x))])


def send(order: Order, sources: dict[str, Iterator[tuple[Any, int]]], url: str, tally: Tally, most: int) -> None:
    """Send digits evenly over time until the order ends, or ``most`` were sent (0: no limit)."""
    free = threading.Semaphore(2 * CALLERS)
    local = threading.local()

    def ask(kind: str, picture: Any, label: int) -> None:
        try:
            if not hasattr(local, "client"):
                local.client = HttpServiceClient(url)
            answer = local.client.infer("serve", picture[None])
            (scores,) = answer.outputs.values()
            read = int(scores.argmax()) if scores.size > 1 else int(scores[0])  # scores, or the digit itself
            tally.count(kind, answer.revision or "?", "right" if read == label else "wrong")
        except ScanflowError as error:
            print(f"a prediction failed: {error}", file=sys.stderr)
            tally.count(kind, "?", "failed")
        finally:
            free.release()

    due, sent = time.monotonic(), 0
    with ThreadPoolExecutor(CALLERS) as callers:
        while not order.ended.wait(max(0.0, due - time.monotonic())) and (not most or sent < most):
            free.acquire()
            kind = order.kind
            callers.submit(ask, kind, *next(sources[kind]))
            sent += 1
            due = max(due + 1 / order.rate, time.monotonic() - 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True, help="the address of the service: see scanflow services")
    parser.add_argument("--send", choices=KINDS, default="clean")
    parser.add_argument("--rate", type=float, default=20.0, help="digits a second")
    parser.add_argument("--count", type=int, default=0, help="end after this many; 0: at the end of the input")
    parser.add_argument("--drifted_path", default="", help="an .npz file such as MNIST-C's; default: generated")
    parser.add_argument("--app", default="mnist")
    parser.add_argument("--team", default="datascience")
    arguments = parser.parse_args()
    order = Order("clean", 1.0)
    try:
        order.take(f"{arguments.send} {arguments.rate}")
        tracker = step_tracker()
        kept = archive.pictures(tracker, arguments.app, arguments.team)
        if not len(kept["x_sent"]):
            sys.exit("Error: the training kept no pictures to send. Train on more pictures.")
        file = str(Path(arguments.drifted_path).expanduser()) if arguments.drifted_path else ""
        drifted = drifted_pictures(file, kept, len(kept["y_sent"]) + len(kept["y_clean"]))
        clean = kept["x_sent"], kept["y_sent"]
        archive.keep_truth(
            tracker, arguments.app, arguments.team, *map(np.concatenate, zip(clean, drifted, strict=True))
        )
    except (ScanflowError, ValueError, OSError, KeyError) as error:
        sys.exit(f"Error: {error}")
    sources = {"clean": shuffled(*clean), "drifted": shuffled(*drifted)}
    tally, told = Tally(), threading.Event()

    def listen() -> None:
        for line in sys.stdin:
            try:
                order.take(line)
            except ValueError as error:
                print(f"Error: {error}", file=sys.stderr)
        if not arguments.count:
            order.ended.set()

    def tell() -> None:
        while not told.wait(1.0):
            print(tally.line(), flush=True)

    threading.Thread(target=listen, daemon=True).start()
    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    print(json.dumps({"ready": {"clean": len(clean[0]), "drifted": len(drifted[0])}}), flush=True)
    try:
        send(order, sources, arguments.url, tally, arguments.count)
    except KeyboardInterrupt:
        pass
    told.set()
    teller.join()
    print(tally.line(), flush=True)


if __name__ == "__main__":
    main()
