"""The processes of an MPI job on this machine: ``mpirun``, and a shell wrapper around each rank."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from scanflow.accelerators.visible import HOLDER_VARIABLE
from scanflow.backends.local.mpi.mpirun import RANK_VARIABLES, Mpirun, build_command
from scanflow.backends.rank_files import create_rank_folder, describe_first_failure, exit_status
from scanflow.placement.cpulist import format_cpus
from scanflow.placement.mpi.job_plan import MPIPlan
from scanflow.processes.proc_stat import compute_cpu_seconds, read_stat_fields

MAX_OUTPUT_BYTES: Final = 256 * 1024 * 1024
"""Limit of all ranks' output, so that they cannot fill the disk."""

GRACE_S: Final = 5.0

# For each rank: redirects its output to its own files, binds its CPUs, records its exit, and whether mpirun ended it.
# taskset is of util-linux, which Debian always has. The rest is built into the shell, as each program that it would
# start delays the job.
_WRAPPER: Final = f"""\
#!/bin/sh
folder=$1; shift
rank=${{{RANK_VARIABLES[0]}:-$PMI_RANK}}
export SCANFLOW_MPI_RANK=$rank SCANFLOW_MPI_SHELL=$$
exec >"$folder/$rank.out" 2>"$folder/$rank.err"
n=0
while read -r cpus && [ $n -lt "$rank" ]; do n=$((n + 1)); done <"$folder/cpus"
if [ -e "$folder/devices" ]; then
    n=0
    while read -r devices && [ $n -lt "$rank" ]; do n=$((n + 1)); done <"$folder/devices"
    for variable in $devices; do export "${{variable?}}"; done
fi
if [ -n "$cpus" ]; then set -- taskset -c "$cpus" "$@"; fi
"$@" &
child=$!
echo $child >"$folder/$rank.pid"
trap ': >"$folder/$rank.stopped"; kill -TERM $child 2>/dev/null' TERM INT
wait $child; code=$?
while kill -0 $child 2>/dev/null; do wait $child; code=$?; done
echo $code >"$folder/$rank.exit"
exit $code
"""


# mpirun gets one SIGTERM, from this process or, when this one is gone, from the kernel. A signal to the group of both
# would be a second one, at which it abandons its ranks.
_WITH_ITS_PARENT: Final = ("setpriv", "--pdeathsig", "TERM")


def prepare(folder: Path, plan: MPIPlan, notes: Mapping[str, str | None]) -> None:
    """Write the input of the ranks' shells, and ``plan.json`` with ``notes``, into an empty folder."""
    create_rank_folder(folder.parent, plan, name=folder.name, notes=notes)
    (folder / "rank.sh").write_text(_WRAPPER, encoding="utf-8")
    lines = "".join(f"{format_cpus(rank.cpus)}\n" if rank.cpus else "\n" for rank in plan.ranks)
    (folder / "cpus").write_text(lines, encoding="utf-8")
    if HOLDER_VARIABLE in os.environ:
        from scanflow.backends.local.mpi.rank_devices import read_rank_variables

        variables = read_rank_variables(plan, os.environ)
        lines = "".join(" ".join(f"{name}={value}" for name, value in own.items()) + "\n" for own in variables)
        (folder / "devices").write_text(lines, encoding="utf-8")


def start(
    folder: Path, plan: MPIPlan, launcher: Mpirun, argv: Sequence[str], *, end_s: int = 1
) -> subprocess.Popen[bytes]:
    """Start ``mpirun`` with the ranks of a plan; its own stderr goes to ``mpirun.err``.

    ``end_s``: the grace period between SIGTERM and SIGKILL to ranks.
    """
    wrapped = ["/bin/sh", str(folder / "rank.sh"), str(folder), *argv]
    mpirun, env = build_command(
        launcher, len(plan.ranks), oversubscribed=plan.oversubscribed, argv=wrapped, root=os.geteuid() == 0
    )
    with (folder / "mpirun.err").open("wb") as errors:
        env["OMPI_MCA_odls_base_sigkill_timeout"] = str(end_s)
        return subprocess.Popen(
            [*_WITH_ITS_PARENT, *mpirun],
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            stderr=errors,
            process_group=0,
        )


def wait(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Wait for a time, or until the process has ended: without the polling of ``Popen.wait``."""
    try:
        pidfd = os.pidfd_open(process.pid)
    except OSError:  # an old kernel, or a sandbox
        time.sleep(seconds)
        return
    try:
        select.select([pidfd], [], [], seconds)
    finally:
        os.close(pidfd)


def end(process: subprocess.Popen[bytes], *, grace_s: float = GRACE_S) -> None:
    """End ``mpirun``, which ends its ranks."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(grace_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def measure_output(folder: Path, n_tasks: int) -> dict[int, int]:
    """Return the size in bytes of each rank's output."""
    sizes: dict[int, int] = {}
    for rank in range(n_tasks):
        for kind in ("out", "err"):
            file = folder / f"{rank}.{kind}"
            if file.exists():
                sizes[rank] = sizes.get(rank, 0) + file.stat().st_size
    return sizes


def kill_ranks(folder: Path, most_bytes: int) -> None:
    """Kill the ranks at once, whatever ``mpirun`` does, and truncate the output of each."""
    for pid in _list_pids(folder).values():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for file in folder.iterdir():
        if file.suffix in {".out", ".err"} and file.stat().st_size > most_bytes:
            os.truncate(file, most_bytes)


def measure_cpu_time(folder: Path) -> dict[int, float]:
    """Return the CPU time in seconds of each running rank."""
    seconds: dict[int, float] = {}
    for rank, pid in _list_pids(folder).items():
        with suppress(OSError):
            seconds[rank] = compute_cpu_seconds(read_stat_fields(pid))
    return seconds


def _list_pids(folder: Path) -> dict[int, int]:
    """Return the process ids of the running ranks."""
    running = (file for file in folder.glob("*.pid") if not file.with_suffix(".exit").exists())
    return {int(file.stem): int(text) for file in running if (text := file.read_text(encoding="ascii").strip())}


def describe_failure(folder: Path, name: str, code: int) -> str:
    """Describe the rank because of which ``mpirun`` ended the job ``name`` with a code, with the rank's last output."""
    ended = [
        (file.with_suffix(".stopped").exists(), file.stat().st_mtime_ns, int(file.stem))
        for file in folder.glob("*.exit")
    ]
    statuses = [(rank, exit_status(folder, rank) or 0) for *_, rank in sorted(ended)]
    failure = describe_first_failure(name, statuses, code, folder)
    if failure is None:
        text = (folder / "mpirun.err").read_text(encoding="utf-8", errors="replace").strip()
        return f"mpirun failed with code {code} before a rank of {name!r} did: {text[-2000:]}"
    return failure
