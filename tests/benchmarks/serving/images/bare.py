"""The image workload on bare metal: a plain process for each core, no HTTP.

Usage: ``bare.py SECONDS CPU…``; prints when each image was finished, in seconds from the start, as JSON,
one list for each CPU.
"""

import json
import os
import subprocess
import sys
import time

from transform import picture, transform


def predict_alone(seconds: float, cpu: int) -> None:
    os.sched_setaffinity(0, {cpu})
    image = picture()
    transform(image)
    print("ready", flush=True)
    sys.stdin.readline()
    began, ends = time.perf_counter(), []
    while time.perf_counter() - began < seconds:
        transform(image)
        ends.append(time.perf_counter() - began)
    print(json.dumps(ends))


def main(seconds: str, *cpus: str) -> None:
    command = [sys.executable, __file__, "--one", seconds]
    workers = [
        subprocess.Popen([*command, cpu], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for cpu in cpus
    ]
    for worker in workers:
        assert worker.stdout is not None
        worker.stdout.readline()
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    print(json.dumps({cpu: json.loads(worker.communicate()[0]) for cpu, worker in zip(cpus, workers, strict=True)}))


if __name__ == "__main__":
    if sys.argv[1] == "--one":
        predict_alone(float(sys.argv[2]), int(sys.argv[3]))
    else:
        main(*sys.argv[1:])
