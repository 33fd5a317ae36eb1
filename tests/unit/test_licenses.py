"""What is installed beside this project may be used, changed and passed on with it."""

from __future__ import annotations

import re
from importlib.metadata import distributions, metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.utils import canonicalize_name

LOCK = Path(__file__).parents[2] / "requirements" / "demo.txt"

ALLOWED = {
    *(
        "0BSD",
        "Apache-2.0",
        "BSD-2-Clause",
        "BSD-3-Clause",
        "CC0-1.0",
        "ISC",
        "MIT",
        "MIT-0",
        "MIT-CMU",
        "PSF-2.0",
        "Zlib",
    ),
    "LGPL-3.0-only",  # psycopg, an extra: imported as it is
    "MPL-2.0",  # certifi, pathspec: neither is changed
}
SPELLINGS = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache License 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD-3-Clause",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
}
READ = {"huey": "MIT", "mlcommons-loadgen": "Apache-2.0", "namex": "Apache-2.0", "skops": "MIT"}
"""Those whose metadata names none, as their files or sources say."""


def list_licenses(name: str) -> set[str]:
    """Return the SPDX identifiers of an installed package's license, else the words of its metadata."""
    about: Any = metadata(name)
    if expression := about.get("License-Expression"):
        return set(re.split(r" (?:AND|OR|WITH) ", re.sub(r"[()]", "", expression)))
    classifiers = [text.rpartition(" :: ")[2] for text in about.get_all("Classifier") or () if "License ::" in text]
    named: list[str] = [text for text in classifiers if text != "OSI Approved"] or [
        about.get("License") or READ.get(name, "")
    ]
    return {SPELLINGS.get(text, text) for text in named}


def find_installed() -> list[str]:
    """Return the locked packages that are here: some are for other systems alone."""
    locked = set(re.findall(r"^([\w.-]+)(?:\[.*\])?==", LOCK.read_text(), re.MULTILINE))
    return sorted(locked & {canonicalize_name(package.metadata["Name"]) for package in distributions()})


@pytest.mark.parametrize("name", find_installed())
def test_every_installed_package_has_a_license_that_allows_its_use(name: str) -> None:
    licenses = list_licenses(name)
    assert licenses
    assert licenses <= ALLOWED, f"{name} is under {', '.join(licenses)}"
