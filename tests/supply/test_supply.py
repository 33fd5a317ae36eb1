"""What others wrote and this project installs: known vulnerabilities, the bill of materials, the newest versions."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.supply, pytest.mark.timeout(1500)]

CHECKOUT = Path(__file__).parents[2]
IMAGES = {"base": "image-base", "agent": "image-server", "server": "image-server", "tracker": "image-server"}
LOCKS = {"wheel": "demo", **IMAGES}
VULNERABLE = "jinja2==3.1.2"
"""Vulnerable since January 2024 (CVE-2024-22195): an audit that does not say so has asked nobody."""


def audit(lock: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pip_audit", "--strict", "--no-deps", "--disable-pip", "--progress-spinner=off"]
    return subprocess.run([*command, "-r", lock], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", ["wheel", "base", "server"])
def test_no_locked_package_has_a_known_vulnerability(tmp_path: Path, name: str) -> None:
    (tmp_path / "vulnerable.txt").write_text(VULNERABLE)
    if "GHSA-h5c8-rqwp-cp95" not in (probe := audit(tmp_path / "vulnerable.txt")).stdout:
        pytest.skip(f"the service of known vulnerabilities does not answer: {probe.stderr.strip().splitlines()[-1:]}")
    audited = audit(CHECKOUT / "requirements" / f"{LOCKS[name]}.txt")
    assert audited.returncode == 0, audited.stdout + audited.stderr


@pytest.fixture(scope="module")
def materials() -> Path:
    subprocess.run(["make", "sbom"], cwd=CHECKOUT, check=True, capture_output=True)
    return CHECKOUT / "dist" / "sbom"


@pytest.mark.parametrize("name", LOCKS)
def test_the_bill_of_materials_names_every_locked_package_with_its_hashes(materials: Path, name: str) -> None:
    bill = json.loads((materials / f"{name}.cdx.json").read_text())
    lock = (CHECKOUT / "requirements" / f"{LOCKS[name]}.txt").read_text()
    assert bill["metadata"]["component"]["name"] == "scanflow-mlops"
    locked = {(match[1], match[2]) for match in re.finditer(r"^([\w.-]+)(?:\[.*?\])?==([^\s;\\]+)", lock, re.MULTILINE)}
    assert {(part["name"], part["version"]) for part in bill["components"]} == locked
    hashes = {
        file["content"] for part in bill["components"] for ref in part["externalReferences"] for file in ref["hashes"]
    }
    assert hashes == set(re.findall(r"sha256:(\w+)", lock))


def test_the_newest_versions_that_the_bounds_allow_pass_the_unit_tests() -> None:
    newest = CHECKOUT / ".cache" / "newest"
    python, uv = str(newest / "bin" / "python"), [sys.executable, "-m", "uv"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    for command in (
        [*uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(newest)],
        [*uv, "pip", "install", "--quiet", "--python", python, "--upgrade", "-e", ".[all]", "--group", "dev"],
    ):
        subprocess.run(command, cwd=CHECKOUT, env=environment, check=True)
    (gate,) = re.findall(r"^GATE := (.*)$", (CHECKOUT / "Makefile").read_text(), re.MULTILINE)
    tests = [python, "-m", "pytest", "-q", "-n", "2", "-m", gate, "tests/unit"]
    tested = subprocess.run(tests, cwd=CHECKOUT, env=environment, capture_output=True, text=True, check=False)
    assert tested.returncode == 0, tested.stdout[-8000:]
