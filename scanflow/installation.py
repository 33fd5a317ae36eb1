"""How this copy of scanflow was installed, and how to add an extra or another package to it. Standard library only.

Importing this module does nothing: the environment is looked at when a message is written.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

DISTRIBUTION: Final = "scanflow-mlops"
"""The distribution's name. On the public index, ``scanflow`` is another project's package."""

IMAGE_WHEELS: Final = "/opt/scanflow/wheels"
"""The folder from which the images of ``deploy/images`` install scanflow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """A copy of scanflow, and the environment that it is in."""

    direct_url: Mapping[str, Any] | None = None
    """The distribution's ``direct_url.json`` (PEP 610), which says where it came from; None: from an index."""

    executable: str
    """The environment's interpreter."""

    has_pip: bool = True
    pip_on_path: bool = False
    """Whether the program ``pip`` on PATH is this environment's."""

    uv: str = "uv"
    """The program that installs packages into an environment without pip."""

    linked: bool = False
    """Whether scanflow is only linked into an environment that was made from the requirements of a step or service."""

    @property
    def in_image(self) -> bool:
        return self.direct_url is not None and str(self.direct_url["url"]).startswith(f"file://{IMAGE_WHEELS}/")


def explain_install(*extras: str, package: str | None = None) -> str:
    """Return the sentence that says how to add extras, or a package of another project, to this copy of scanflow."""
    installation = read_installation()
    command = format_command(installation, extras, package=package)
    if command is None:
        return format_advice(installation, extras, package=package)
    return f"Install {'them' if len(extras) > 1 else 'it'}: {command}"


def suggest_install(*extras: str, package: str | None = None) -> str:
    """Return the command that adds extras, or a package, to this copy; where none lasts, what to do instead."""
    installation = read_installation()
    command = format_command(installation, extras, package=package)
    return format_advice(installation, extras, package=package) if command is None else command


def format_command(installation: Installation, extras: Sequence[str], *, package: str | None = None) -> str | None:
    """Return the command line that adds extras, or a package, to an installation; None: it would be gone afterwards."""
    import shlex

    if installation.in_image or installation.linked:
        return None
    if not installation.has_pip:
        program = [installation.uv, "pip", "install", "--python", installation.executable]
    elif installation.pip_on_path:
        program = ["pip", "install"]
    else:
        program = [installation.executable, "-m", "pip", "install"]
    what = [package] if package else _build_arguments(installation.direct_url, ",".join(extras))
    return shlex.join([*program, *what])


def format_advice(installation: Installation, extras: Sequence[str], *, package: str | None = None) -> str:
    """Return what to do where no command would last: in an image, and in the environment of a step or service."""
    extra = f"the extra{'s' if len(extras) > 1 else ''} {' and '.join(extras)}"
    if installation.linked:
        return f"Name {package or f'the packages of {extra}'} in requirements= of the step or service."
    names = "it" if package else "its packages" if len(extras) == 1 else "their packages"
    return f"Use an image that has {package or extra}: name {names} in requirements= and run: scanflow build"


def read_installation() -> Installation:
    """Return how this copy was installed."""
    import shutil
    from importlib.util import find_spec

    folder = Path(sys.executable).parent
    pip, uv = shutil.which("pip"), folder / "uv"
    direct_url, linked = _read_direct_url()
    return Installation(
        direct_url=direct_url,
        executable=sys.executable,
        has_pip=find_spec("pip") is not None,
        pip_on_path=sys.prefix != sys.base_prefix and pip is not None and Path(pip).parent == folder,
        uv=str(uv) if shutil.which("uv") is None and uv.exists() else "uv",
        linked=linked,
    )


def _read_direct_url() -> tuple[Mapping[str, Any] | None, bool]:
    """Return where the distribution came from, and whether there is none because its packages are linked."""
    import json
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        text = distribution(DISTRIBUTION).read_text("direct_url.json")
    except PackageNotFoundError:
        checkout = Path(__file__).parents[1]
        if (checkout / "pyproject.toml").exists():  # it is only on the path
            return {"url": checkout.as_uri(), "dir_info": {"editable": True}}, False
        return None, True
    try:
        content = json.loads(text or "null")
    except ValueError:
        content = None
    return content if isinstance(content, dict) and "url" in content else None, False


def _build_arguments(direct_url: Mapping[str, Any] | None, extras: str) -> list[str]:
    """Return the arguments of pip for the same distribution with extras."""
    import re
    from urllib.parse import unquote, urlsplit

    if direct_url is None:
        return [f"{DISTRIBUTION}[{extras}]"]
    url = re.sub(r"^(https?://)(?!\$)[^/@]*@", r"\1", str(direct_url["url"]))  # a password is not repeated
    if direct_url.get("dir_info", {}).get("editable"):
        return ["-e", f"{unquote(urlsplit(url).path)}[{extras}]"]
    if source := direct_url.get("vcs_info"):
        url = f"{source['vcs']}+{url}@{source['commit_id']}"
    if subfolder := direct_url.get("subdirectory"):
        url += f"#subdirectory={subfolder}"
    return [f"{DISTRIBUTION}[{extras}] @ {url}"]
