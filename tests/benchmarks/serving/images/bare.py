"""The image workload on bare metal: a plain process for each core, no HTTP. Prints ``{"images_s": …}``.

Usage: ``bare.py SECONDS CPU…``
"""

import json
import os
import subprocess
import sys
import time

from transform import picture, transform


def one(seconds: float, cpu: int) -> None:
    """Transform one image after the other on one core; each one's end goes to standard output."""
    os.sched_setaffinity(0, {cpu})
    image = picture()
    transform(image)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    began, done = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        transform(image)
        done += 1
    print(done / (time.perf_counter() - began))


def main(seconds: str, *cpus: str) -> None:
    workers = [
        subprocess.Popen(
            [sys.executable, __file__, "--one", seconds, cpu], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for cpu in cpus
    ]
    for worker in workers:
        assert worker.stdout is not None
        worker.stdout.readline()
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    print(json.dumps({"images_s": sum(float(worker.communicate()[0]) for worker in workers)}))


if __name__ == "__main__":
    if sys.argv[1] == "--one":
        one(float(sys.argv[2]), int(sys.argv[3]))
    else:
        main(*sys.argv[1:])
