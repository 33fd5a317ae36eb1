"""The processes of an MPI job on this machine: ``mpirun``, and a small shell around each rank."""

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

from scanflow.backends.local.mpi.flavors import RANK_VARIABLES, Mpirun, command
from scanflow.backends.rank_files import first_failure, new_folder
from scanflow.placement.cpulist import format_cpus
from scanflow.placement.mpi.plan import MPIPlan
from scanflow.processes.proc_stat import cpu_seconds, stat_fields

MAX_OUTPUT_BYTES: Final = 256 * 1024 * 1024
"""Most that all ranks may write; one that floods its output would fill the disk."""

GRACE_S: Final = 5.0

# Each rank: its output to its own files, its CPUs, and how it ended. taskset is of util-linux, which Debian always has.
# The rest is the shell's own, as each program that it would start delays the job.
_WRAPPER: Final = f"""\
#!/bin/sh
folder=$1; shift
rank=${{{RANK_VARIABLES[0]}:-$PMI_RANK}}
export SCANFLOW_MPI_RANK=$rank SCANFLOW_MPI_SHELL=$$
exec >"$folder/$rank.out" 2>"$folder/$rank.err"
n=0
while read -r cpus && [ $n -lt "$rank" ]; do n=$((n + 1)); done <"$folder/cpus"
if [ -n "$cpus" ]; then set -- taskset -c "$cpus" "$@"; fi
"$@" &
child=$!
echo $child >"$folder/$rank.pid"
trap 'kill -TERM $child 2>/dev/null' TERM INT
wait $child; code=$?
while kill -0 $child 2>/dev/null; do wait $child; code=$?; done
echo $code >"$folder/$rank.exit"
exit $code
"""


# mpirun is asked to end once, by this process or, when this one is gone, by the kernel. A signal to the group of both
# would be a second one, at which it leaves its ranks alone.
_WITH_ITS_PARENT: Final = ("setpriv", "--pdeathsig", "TERM")


def prepare(folder: Path, plan: MPIPlan, notes: Mapping[str, str | None]) -> None:
    """Write what the shells of the ranks read, and ``plan.json`` with ``notes``, into an empty folder."""
    new_folder(folder.parent, plan, name=folder.name, notes=notes)
    (folder / "rank.sh").write_text(_WRAPPER, encoding="utf-8")
    lines = "".join(f"{format_cpus(rank.cpus)}\n" if rank.cpus else "\n" for rank in plan.ranks)
    (folder / "cpus").write_text(lines, encoding="utf-8")


def start(
    folder: Path, plan: MPIPlan, launcher: Mpirun, argv: Sequence[str], *, end_s: int = 1
) -> subprocess.Popen[bytes]:
    """Start ``mpirun`` with the ranks of a plan; what it says itself goes to ``mpirun.err``.

    ``end_s``: how long ranks that are asked to end have, before they are killed.
    """
    wrapped = ["/bin/sh", str(folder / "rank.sh"), str(folder), *argv]
    whole, env = command(
        launcher, len(plan.ranks), oversubscribed=plan.oversubscribed, argv=wrapped, root=os.geteuid() == 0
    )
    with (folder / "mpirun.err").open("wb") as errors:
        env["OMPI_MCA_odls_base_sigkill_timeout"] = str(end_s)
        return subprocess.Popen(
            [*_WITH_ITS_PARENT, *whole],
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            stderr=errors,
            process_group=0,
        )


def wait(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Wait so long, or until the process has ended, and no longer: ``Popen.wait`` looks only now and then."""
    try:
        ended = os.pidfd_open(process.pid)
    except OSError:  # an old kernel, or a sandbox
        time.sleep(seconds)
        return
    try:
        select.select([ended], [], [], seconds)
    finally:
        os.close(ended)


def end(process: subprocess.Popen[bytes], *, grace_s: float = GRACE_S) -> None:
    """End ``mpirun``, which ends its ranks."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(grace_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def written(folder: Path, n_tasks: int) -> dict[int, int]:
    """Return the bytes of each rank's output."""
    found: dict[int, int] = {}
    for rank in range(n_tasks):
        for kind in ("out", "err"):
            file = folder / f"{rank}.{kind}"
            if file.exists():
                found[rank] = found.get(rank, 0) + file.stat().st_size
    return found


def silence(folder: Path, most_bytes: int) -> None:
    """Kill the ranks at once, whatever ``mpirun`` does, and cut what each of them wrote to so much."""
    for pid in _pids(folder).values():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for file in folder.iterdir():
        if file.suffix in {".out", ".err"} and file.stat().st_size > most_bytes:
            os.truncate(file, most_bytes)


def cpu_used(folder: Path) -> dict[int, float]:
    """Return the seconds of CPU time of the ranks that run."""
    found: dict[int, float] = {}
    for rank, pid in _pids(folder).items():
        with suppress(OSError):
            found[rank] = cpu_seconds(stat_fields(pid))
    return found


def _pids(folder: Path) -> dict[int, int]:
    """Return the processes of the ranks that have not ended."""
    running = (file for file in folder.glob("*.pid") if not file.with_suffix(".exit").exists())
    return {int(file.stem): int(text) for file in running if (text := file.read_text(encoding="ascii").strip())}


def failure(folder: Path, name: str, code: int) -> str:
    """Return which rank of the job ``name`` failed first, how, and the last that it wrote."""
    ended = [
        (file.stat().st_mtime_ns, int(file.stem), int(file.read_text(encoding="ascii").strip() or 0))
        for file in folder.glob("*.exit")
    ]
    failed = first_failure(name, ((rank, status) for _, rank, status in sorted(ended)), folder)
    if failed is None:
        text = (folder / "mpirun.err").read_text(encoding="utf-8", errors="replace").strip()
        return f"mpirun failed with code {code} before a rank of {name!r} did: {text[-2000:]}"
    return failed
