"""The job's description, and the program itself where a compiler for MPI is installed."""

import shutil
import subprocess
from pathlib import Path

import pytest

from app import pi

PROGRAM = Path(__file__).parents[1] / "pi.c"


def test_the_job_has_two_ranks():
    assert (pi.n_tasks, pi.mainfile) == (2, "pi")


@pytest.mark.skipif(shutil.which("mpicc") is None, reason="mpicc is not installed")
def test_one_rank_computes_pi(tmp_path):
    subprocess.run(["mpicc", "-O2", "-o", tmp_path / "pi", PROGRAM], check=True)
    result = subprocess.run(
        [tmp_path / "pi", "1000000"], check=True, capture_output=True, text=True
    )
    assert result.stdout == "pi is 3.141593\n"
