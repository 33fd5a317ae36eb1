"""What a release is made of: `python -m tests.release [--tag v0.1.0]`, or `make release-files`.

The sdist is built from the files of the commit and from no others, the wheel from the sdist, and both as of the time of
the commit: whoever builds the same commit gets the same bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
RELEASE = CHECKOUT / "dist" / "release"
MATERIALS = CHECKOUT / "dist" / "sbom"


def main() -> None:
    """Write sdist, wheel, bills of materials, notes and checksums into ``dist/release``."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tag", help="the tag of the release, which must be v and the version")
    parser.add_argument("--version", action="store_true", help="print the version, and build nothing")
    options = parser.parse_args()
    if options.version:
        print(read_version())
        return
    write_files(options.tag)


def write_files(tag: str | None) -> None:
    version, changelog = read_version(), (CHECKOUT / "CHANGELOG.md").read_text(encoding="utf-8")
    if tag is not None and (problem := find_tag_problem(tag, version, changelog)):
        sys.exit(problem)
    shutil.rmtree(RELEASE, ignore_errors=True)
    RELEASE.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="release-") as name:
        tree = Path(name) / "tree"
        export_commit(tree)
        sdist, wheel = build_distributions(tree, RELEASE, epoch=read_commit_time())
        if unexpected := list_unexpected(sdist, list_commit_files()):
            sys.exit(f"The sdist has files that are not in the commit: {', '.join(unexpected)}")
    for bill in sorted(MATERIALS.glob("*.cdx.json")):
        shutil.copy(bill, RELEASE)
    files = sorted(path for path in RELEASE.iterdir() if path.is_file())
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (RELEASE / "SHA256SUMS").write_text("".join(lines), encoding="utf-8")
    (RELEASE.parent / "release-notes.md").write_text(extract_notes(changelog, version) or "", encoding="utf-8")
    print(f"{wheel.name}: built from {sdist.name}. The files are in {RELEASE.relative_to(CHECKOUT)}.")


def read_version() -> str:
    """Return the version, which two files name alike."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    source = (CHECKOUT / "scanflow" / "__init__.py").read_text(encoding="utf-8")
    if f'__version__ = "{project}"' not in source:
        sys.exit(f"pyproject.toml says version {project}, and scanflow/__init__.py another one. Write the same.")
    return str(project)


def find_tag_problem(tag: str, version: str, changelog: str) -> str | None:
    """Return why a tag cannot be released as it is; None: it can."""
    if tag != f"v{version}":
        return f"The tag {tag} is not the version: v{version}. Set the version in pyproject.toml, or tag anew."
    if not extract_notes(changelog, version):
        return f"CHANGELOG.md has no entries below a heading '## [{version}] - DATE'. Rename [Unreleased] to it."
    return None


def extract_notes(changelog: str, version: str) -> str | None:
    """Return what the changelog says of a version; None: nothing."""
    match = re.search(rf"^## \[{re.escape(version)}\][^\n]*\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL)
    return match[1].strip() or None if match else None


def read_commit_time() -> int:
    """Return the time of the checked-out commit, in seconds since 1970."""
    return int(_run_git("log", "-1", "--format=%ct"))


def list_commit_files() -> set[str]:
    return set(_run_git("ls-tree", "-r", "--name-only", "-z", "HEAD").decode().split("\0"))


def export_commit(folder: Path) -> None:
    """Write the files of the checked-out commit, and no others, into a folder."""
    with tarfile.open(fileobj=io.BytesIO(_run_git("archive", "HEAD"))) as archive:
        archive.extractall(folder, filter="data")


def build_distributions(tree: Path, folder: Path, *, epoch: int) -> tuple[Path, Path]:
    """Build the sdist of a tree and the wheel of that sdist, both as of a time in seconds since 1970."""
    sdist = build(tree, folder, "sdist", epoch=epoch)
    with tempfile.TemporaryDirectory(prefix="sdist-") as name, tarfile.open(sdist) as archive:
        archive.extractall(name, filter="data")
        wheel = build(Path(name) / sdist.name.removesuffix(".tar.gz"), folder, "wheel", epoch=epoch)
    return sdist, wheel


def build(tree: Path, folder: Path, target: str, *, epoch: int) -> Path:
    """Build the sdist or the wheel of a tree into a folder; return the file."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder.absolute())]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch)}
    subprocess.run(command, cwd=tree, env=environment, check=True, stdout=subprocess.DEVNULL)
    (file,) = folder.glob("*.tar.gz" if target == "sdist" else "*.whl")
    return file


def list_unexpected(sdist: Path, expected: set[str]) -> list[str]:
    """Return the files of an sdist that are not among those expected; what the builder writes itself is."""
    with tarfile.open(sdist) as archive:
        names = {member.name.partition("/")[2] for member in archive.getmembers() if not member.isdir()}
    return sorted(names - expected - {"PKG-INFO"})


def _run_git(*words: str) -> bytes:
    return subprocess.run(["git", *words], cwd=CHECKOUT, check=True, stdout=subprocess.PIPE).stdout


if __name__ == "__main__":
    main()
