"""Records of the images built here, one file each in the home folder."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from scanflow.files.private import create_private_folder, replace_by_draft, write_private


class BuiltImage(BaseModel):
    """An image that was built."""

    model_config = ConfigDict(frozen=True)

    image: str
    """Its name: ``host:5000/scanflow/mnist:0f3c…``."""

    pushed: bool
    """Whether it was pushed to its registry."""


class BuiltImages:
    """The built images recorded in a home folder."""

    def __init__(self, home: Path) -> None:
        self._folder = home / "images"

    def find(self, tag: str) -> BuiltImage | None:
        """Return the image with a recipe's tag, if it was built."""
        try:
            return BuiltImage.model_validate_json((self._folder / f"{tag}.json").read_bytes())
        except (FileNotFoundError, ValidationError):  # one that cannot be read is built again
            return None

    def find_pullable(self, tag: str, registry: str | None) -> str | None:
        """Return the name of a built image that nodes can pull: it was pushed, or no registry is configured."""
        built = self.find(tag)
        return built.image if built is not None and (built.pushed or registry is None) else None

    def keep(self, tag: str, image: BuiltImage) -> None:
        create_private_folder(self._folder)
        draft = self._folder / f".{tag}.json"
        with replace_by_draft(self._folder / f"{tag}.json", draft):
            write_private(draft, image.model_dump_json())
