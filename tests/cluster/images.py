"""The images that pods of the cluster's tests run, made of a checkout: ``python -m tests.cluster.images``.

The image that the registry has gets one more layer, which holds this checkout's code and replaces what was there:
seconds. Where the registry has none, or one of other requirements, it is built with buildah first: minutes. The name of
what was made is printed. ``SCANFLOW_KUBERNETES_REGISTRY`` names a registry that is spoken to in plain HTTP.
"""

from __future__ import annotations

import argparse
import compileall
import gzip
import hashlib
import http.client
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from scanflow.images.image_registry import has_image

CHECKOUT: Final = Path(__file__).resolve().parents[2]
BASE: Final = "scanflow/base"
SITE: Final = f"opt/venv/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
PACKAGES: Final = {
    "scanflow": "scanflow",
    "scanflow_agents": "agents/scanflow_agents",
    "scanflow_client": "client/scanflow_client",
    "scanflow_server": "server/scanflow_server",
    "scanflow_serving": "server/scanflow_serving",
}
TUTORIALS: Final = "scanflow_client/tutorials"
"""Where the wheel has them."""

_MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
_LAYER: Final = "application/vnd.oci.image.layer.v1.tar+gzip"
_LABEL: Final = "dev.scanflow.requirements"
_MOUNTED: Final = ("/etc/ssl/certs", "/etc/pip.conf")


def main() -> None:
    """Make the image, and print its name."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--from", dest="checkout", type=Path, default=CHECKOUT, help="the checkout (this one)")
    parser.add_argument("--tag", help="of the image, beside the one that is the hash of its code")
    parser.add_argument("--full", action="store_true", help="build it in any case, as :latest")
    parser.add_argument("--name", default=BASE, help="scanflow/base, or scanflow/server, agent or tracker")
    parser.add_argument("--all", action="store_true", help="all four, as :latest: what a new cluster needs")
    parser.add_argument("--registry", default=os.environ.get("SCANFLOW_KUBERNETES_REGISTRY"))
    parser.add_argument("--python", help="the image it is built on: REGISTRY/library/python:3.11-slim")
    words = parser.parse_args()
    if not words.registry:
        sys.exit("Which registry? Set SCANFLOW_KUBERNETES_REGISTRY=host:port, or pass --registry.")
    python = words.python or f"{words.registry}/library/python:3.11-slim"
    if words.all:
        for name in (BASE, "scanflow/server", "scanflow/agent", "scanflow/tracker"):
            print(build(words.checkout, words.registry, name, "latest", python))
        return
    if words.full:
        print(build(words.checkout, words.registry, words.name, words.tag or "latest", python))
        return
    for name in dict.fromkeys([BASE, words.name]):  # the base first: the others are built on it
        if not is_current(words.checkout, words.registry, name):
            build(words.checkout, words.registry, name, "latest", python)
    print(refresh(words.checkout, words.registry, words.name, words.tag))


def is_current(checkout: Path, registry: str, name: str) -> bool:
    """Say whether the registry has an image with the requirements of a checkout."""
    if not has_image(f"{registry}/{name}:latest", insecure=True):
        return False
    with _Registry(registry, name) as image_registry:
        labels = (
            image_registry.config(json.loads(image_registry.get("manifests/latest", _MANIFEST)))["config"].get("Labels")
            or {}
        )
    return bool(labels.get(_LABEL) == _requirements(checkout, name))


def _requirements(checkout: Path, name: str) -> str:
    """What the image is made of, but for our own code: its Dockerfile and locks, and those of the base image."""
    folders = dict.fromkeys([BASE, name])
    files = [checkout / "deploy" / "images" / each.rpartition("/")[2] / "Dockerfile" for each in folders]
    locks = ["image-base.txt", *([] if name == BASE else ["image-server.txt"])]
    files += [checkout / "requirements" / lock for lock in locks]
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()


def build(checkout: Path, registry: str, name: str, tag: str, python: str) -> str:
    """Build the image of ``deploy/images`` with that name, push it, and return its name."""
    with tempfile.TemporaryDirectory(prefix="image-") as folder:
        context = Path(folder)
        shutil.copytree(checkout / "requirements", context / "requirements")
        _run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", context / "dist"], checkout)
        arguments = ["--build-arg", f"PYTHON_IMAGE={python}", "--build-arg", f"BASE_IMAGE={registry}/{BASE}:latest"]
        dockerfile = checkout / "deploy" / "images" / name.rpartition("/")[2] / "Dockerfile"
        image = f"{registry}/{name}:{tag}"  # the name under which the others find their base, here as there
        label = f"{_LABEL}={_requirements(checkout, name)}"
        options = ["--layers", "--tls-verify=false", "--network", "host", "--label", label, *mounts(), *arguments]
        _run(["buildah", "bud", *options, "-f", dockerfile, "-t", image, context], context)
        _run(["buildah", "push", "--tls-verify=false", image], context)
    return f"{name}:{tag}"


def mounts() -> list[str]:
    """The words with which a builder sees this machine's certificates and settings of pip."""
    return [word for path in _MOUNTED if Path(path).exists() for word in ("-v", f"{path}:{path}:ro")]


def refresh(checkout: Path, registry: str, name: str = BASE, tag: str | None = None) -> str:
    """Put a checkout's code on top of the image that the registry has, and return the new image's name.

    Its tag is the hash of the code, so that no node has another image under that name. The code gets its byte code
    here: the pods' file systems are read-only.
    """
    staged = checkout / ".cache" / "image-layer"
    _stage(checkout, staged)
    layer, plain = _layer(staged)
    with _Registry(registry, name) as image_registry:
        manifest = json.loads(image_registry.get("manifests/latest", _MANIFEST))
        config = image_registry.config(manifest)
        config["rootfs"]["diff_ids"].append(plain)
        config["history"].append({"created_by": "the code of a checkout"})
        manifest["layers"].append({"mediaType": _LAYER, **image_registry.put_blob(layer)})
        manifest["config"].update(image_registry.put_blob(json.dumps(config).encode()))
        tags = [plain.removeprefix("sha256:")[:12], *([tag] if tag else [])]
        for each in tags:
            image_registry.put(f"manifests/{each}", json.dumps(manifest).encode(), manifest.get("mediaType", _MANIFEST))
    return f"{name}:{tags[0]}"


def _stage(checkout: Path, staged: Path) -> None:
    targets: set[Path] = set()
    for place, source in {**PACKAGES, TUTORIALS: "tutorials"}.items():
        for path in (checkout / source).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                target = staged / place / path.relative_to(checkout / source)
                targets.add(target)
                if not target.exists() or target.stat().st_mtime_ns != path.stat().st_mtime_ns:
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(path, target)
    for path in staged.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts and path not in targets:
            path.unlink()
    compileall.compile_dir(str(staged), quiet=1, stripdir=str(staged), prependdir=f"/{SITE}")


def _layer(staged: Path) -> tuple[bytes, str]:
    """The layer, compressed, and the digest of what it is uncompressed."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        for package in PACKAGES:
            folder = _set_owner(archive.gettarinfo(str(staged / package), f"{SITE}/{package}"))
            folder.mtime = 0
            archive.addfile(folder)
            archive.addfile(tarfile.TarInfo(f"{SITE}/{package}/.wh..wh..opq"))  # nothing of the layers below is seen
            for path in sorted((staged / package).rglob("*")):
                if path.suffix == ".pyc" and not (path.parent.parent / f"{path.name.partition('.')[0]}.py").exists():
                    continue
                info = _set_owner(
                    archive.gettarinfo(str(path), f"{SITE}/{package}/{path.relative_to(staged / package)}")
                )
                if path.is_dir():
                    info.mtime = 0
                    archive.addfile(info)
                else:
                    info.mtime = 0 if path.suffix == ".pyc" else int(path.stat().st_mtime)
                    with path.open("rb") as file:
                        archive.addfile(info, file)
    return gzip.compress(raw.getvalue(), 1, mtime=0), f"sha256:{hashlib.sha256(raw.getvalue()).hexdigest()}"


def _set_owner(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    info.mode = 0o755 if info.isdir() else 0o644
    return info


class _Registry:
    """One repository of a registry that is spoken to in plain HTTP."""

    def __init__(self, registry: str, name: str) -> None:
        self._connection = http.client.HTTPConnection(registry.partition("/")[0], timeout=60)
        project = registry.partition("/")[2]
        self._path = f"/v2/{project + '/' if project else ''}{name}"

    def __enter__(self) -> _Registry:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def get(self, path: str, accept: str = "*/*") -> bytes:
        return self._ask("GET", f"{self._path}/{path}", headers={"Accept": accept})[0]

    def config(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.get(f"blobs/{manifest['config']['digest']}"))
        return document

    def put(self, path: str, body: bytes, kind: str) -> None:
        self._ask("PUT", f"{self._path}/{path}", body, {"Content-Type": kind})

    def put_blob(self, content: bytes) -> dict[str, Any]:
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        place = self._ask("POST", f"{self._path}/blobs/uploads/")[1]["Location"]
        target = place.partition("://")[2].partition("/")[2] if "://" in place else place.lstrip("/")
        joined = "&" if "?" in target else "?"
        self._ask("PUT", f"/{target}{joined}digest={digest}", content, {"Content-Type": "application/octet-stream"})
        return {"digest": digest, "size": len(content)}

    def _ask(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> tuple[bytes, http.client.HTTPMessage]:
        self._connection.request(method, path, body, headers or {})
        reply = self._connection.getresponse()
        content = reply.read()
        if reply.status >= http.client.BAD_REQUEST:
            sys.exit(f"The registry answered {reply.status} to {method} {path}: {content[:300]!r}")
        return content, reply.headers


def _run(command: list[str | Path], folder: Path) -> None:
    environment = {"BUILDAH_ISOLATION": "chroot", **os.environ}
    done = subprocess.run(command, cwd=folder, env=environment, stdout=sys.stderr)
    if done.returncode != 0:
        sys.exit(f"`{' '.join(str(word) for word in command[:3])} …` exited with {done.returncode}.")


if __name__ == "__main__":
    main()
