"""Runs the thesis' 20 jobs (6.4.3), in a small size, from the queue of a server: ``python twenty.py [FACTOR]``.

They come as they came there, FACTOR times as fast (200: within 6 seconds), and the server has them wait for cores.
"""

import os
import sys
import time

import scanflow as sf
from scanflow.backends.job_times import compute_job_times, compute_job_totals
from scanflow_research.simulation.twenty_jobs import generate_thesis_jobs

SERVER = os.environ.get("SCANFLOW_URL", "http://127.0.0.1:46666")  # as `scanflow up` says it
ROUNDS = {"DGEMM": 60, "STREAM": 20, "MiniFE": 30, "RandomRing": 100, "FFT": 100}


def workflow(job):
    """Return a job of the experiment as an MPI workflow."""
    program = job.program
    kernel = {"RandomRing": "ring"}.get(program.name, program.name.lower())
    workload = sf.MPIWorkload(
        name=job.name,
        mainfile="kernels",
        parameters={"kernel": kernel, "rounds": ROUNDS[program.name]},
        n_tasks=2,
        profile=program.profile,
        oversubscribe=True,
    )
    return sf.Workflow(name=job.name, type="mpi", nodes=[workload])


app = sf.Application(
    name="scheduler", team="hpc", app_dir="../mpi", workflows=[workflow(job) for job in generate_thesis_jobs()]
)


def main(factor=200.0):
    client, start, runs = sf.Client(SERVER, progress=False), time.time(), []
    for job in generate_thesis_jobs():
        time.sleep(max(0.0, start + job.submitted_s / factor - time.time()))
        runs.append(client.run(app, job.name, wait=False))  # first come, first served
    times = [compute_job_times(run.wait(), time.time()) for run in runs]
    print(f"{'job':14} {'waiting':>8} {'running':>8} {'response':>8}  seconds")
    for one in times:
        print(f"{one.job:14} {one.waiting_s:8.2f} {one.running_s:8.2f} {one.response_s:8.2f}  {one.state}")
    together = compute_job_totals(times)
    print(f"together: response {together.response_s:.2f} s, mean of waiting {together.waiting_s:.2f} s")
    print(f"makespan {together.makespan_s:.2f} s")


if __name__ == "__main__":
    main(*map(float, sys.argv[1:]))
