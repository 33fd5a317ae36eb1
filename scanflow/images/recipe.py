"""The recipe of an image, its Dockerfile, and the name derived from both. Pure."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Final

from pydantic import BaseModel, ConfigDict

from scanflow.errors import InvalidError

USER: Final = "10001:10001"
"""The user and group of the base image: no image runs as root."""

CODE: Final = "/app"
"""The folder with the application's code in an image; steps and instances run there."""

_REFERENCE: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._\-/:@]*")
_DIGEST_LENGTH: Final = 16


class Recipe(BaseModel):
    """The contents of an image. Equal recipes give the same image."""

    model_config = ConfigDict(frozen=True)

    app: str
    team: str
    base: str
    """The base image; with a digest (``…@sha256:…``) builds are reproducible."""

    requirements: tuple[str, ...] = ()
    """Lines in pip's format."""

    code: str
    """The code's digest, from :func:`~scanflow.images.code_files.compute_digest`."""

    labels: tuple[tuple[str, str], ...] = ()

    @property
    def tag(self) -> str:
        """A digest of the image's contents: 16 hexadecimal digits."""
        return hashlib.sha256(json.dumps([render_dockerfile(self), *self.requirements]).encode()).hexdigest()[
            :_DIGEST_LENGTH
        ]

    def format_name(self, registry: str | None = None) -> str:
        """Return the image's name: ``host:5000/scanflow/mnist:0f3c…``."""
        return f"{'' if registry is None else registry.rstrip('/') + '/'}scanflow/{self.app}:{self.tag}"


def render_dockerfile(recipe: Recipe) -> str:
    """Return the Dockerfile. Its context has the code in ``code/`` and, where there are any, ``requirements.txt``.

    Raises:
        InvalidError: the name of the base image is none.
    """
    if not _REFERENCE.fullmatch(recipe.base):
        raise InvalidError(f"The base image {recipe.base!r} is not an image name. Write it as registry/name:tag.")
    install = (
        "COPY requirements.txt /opt/requirements/app.txt\n"
        "RUN pip install --quiet --no-cache-dir -r /opt/requirements/app.txt\n"
        if recipe.requirements
        else ""
    )
    labels = {
        "dev.scanflow.app": recipe.app,
        "dev.scanflow.team": recipe.team,
        "dev.scanflow.code": recipe.code,
        **dict(recipe.labels),
    }
    return (
        f"FROM {recipe.base}\n"
        "USER 0:0\n"
        f"{install}"
        f"COPY code/ {CODE}/\n"
        f"RUN python -m compileall -q {CODE} || true\n"
        f"USER {USER}\n"
        f"WORKDIR {CODE}\n"
        f"LABEL {' '.join(f'{name}={_quote(labels[name])}' for name in sorted(labels))}\n"
    )


def _quote(text: str) -> str:
    """Return a value quoted for a Dockerfile, without variable expansion."""
    return json.dumps(text, ensure_ascii=False).replace("$", "\\$")
