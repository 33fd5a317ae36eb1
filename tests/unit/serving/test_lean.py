"""An instance is to stay small: what it must not bring along."""

from __future__ import annotations

import subprocess
import sys


def test_the_core_of_an_instance_brings_none_of_the_large_libraries() -> None:
    code = (
        "import sys, scanflow_serving.routes, prometheus_client\n"
        "print(sorted({'pydantic', 'mlflow', 'tensorflow', 'sklearn', 'pandas', 'grpc', 'yaml', 'onnxruntime'}"
        " & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
