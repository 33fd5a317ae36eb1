"""Send questions to the service, and print how many were answered right: ``python send.py old``, ``send.py new 2``."""

import sys

import numpy as np
from app import describe
from texts import read_sentences

import scanflow as sf


def send(kind="old", seed=1, count=500):
    """Send texts in the words of Python's library (old) or of other packages (new); return the share of right
    answers."""
    sentences, topics = (np.array(part) for part in read_sentences(new=kind == "new"))
    drawn = np.random.default_rng(int(seed)).choice(len(topics), count, replace=False)
    client, right = sf.Client(), 0
    for rows in np.array_split(drawn, 10):
        right += int((client.predict("serve", describe(sentences[rows])) == topics[rows]).sum())
    return right / count


if __name__ == "__main__":
    print(f"{send(*sys.argv[1:]):.1%} of 500 are right")
