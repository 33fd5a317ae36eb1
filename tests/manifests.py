"""Kubernetes objects kept as files: ``REGENERATE_GOLDEN=1 pytest …`` writes them again; look at the difference."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parent / "golden" / "kubernetes"


class _Dumper(yaml.SafeDumper):
    """PyYAML's own, whatever Hera makes of it when it is imported."""


_Dumper.add_representer(str, yaml.representer.SafeRepresenter.represent_str)


def as_yaml(documents: Iterable[Mapping[str, Any]]) -> str:
    text: str = yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=110)
    return text


def assert_manifests(name: str, *manifests: Mapping[str, Any]) -> None:
    """Compare objects with those in ``tests/golden/kubernetes/<name>.yaml``, one document each."""
    path = FOLDER / f"{name}.yaml"
    text = as_yaml(manifests)
    if os.environ.get("REGENERATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert path.is_file(), f"There is no {path.name}. Write it: REGENERATE_GOLDEN=1 pytest …"
    expected = path.read_text(encoding="utf-8")
    assert text == expected, f"{path.name} differs. Meant? REGENERATE_GOLDEN=1 pytest …"
