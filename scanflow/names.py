"""Names and identifiers: which are allowed, and how new ones are created."""

from __future__ import annotations

import random
import re
import unicodedata
from typing import NewType

from scanflow.errors import InvalidError

RunName = NewType("RunName", str)
"""A run's human name, unique in one home: ``calm-otter-417``."""

StepName = NewType("StepName", str)
"""A node's name, or that of one of its fanned-out tasks: ``train`` or ``train.3``."""

MAX_NAME = 63  # a DNS-1123 label, which is what Kubernetes accepts for the objects we will make of these names
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_COMMON_NAME = re.compile(r"[a-zA-Z0-9]([-.a-zA-Z0-9]{0,62}[a-zA-Z0-9])?")
_MODEL_ADDRESS = re.compile(r"models:/[^/@\s]+[/@][^/@\s]+")

_ADJECTIVES = (
    "able amber bold brave brisk calm clear crisp daring deft eager early fair fancy fleet fond frank fresh gentle "
    "glad golden grand happy hardy honest humble jolly keen kind lively lucid lucky mellow merry mild neat nimble "
    "noble plain polite prime proud quick quiet rapid ready sharp shiny silent smart solid spry steady still sunny "
    "swift tidy vivid warm wise witty zesty"
).split()
_NOUNS = (
    "acorn alder aspen badger beaver birch bison brook canyon cedar cliff comet coral crane creek dune eagle ember "
    "falcon fern finch fjord fox glade grove harbor hawk heron hill ibis island jay lake larch lark lynx maple marten "
    "meadow mesa moss oak ocean orca osprey otter owl pebble pine plover quail raven reef ridge river robin seal "
    "sparrow spruce summit swan thrush tide trout tulip valley willow wolf wren"
).split()


def build_slug(text: str) -> str:
    """Return the nearest allowed name to ``text``; empty if no character of it is allowed."""
    bare = "".join(sign for sign in unicodedata.normalize("NFKD", text.lower()) if not unicodedata.combining(sign))
    lowered = re.sub(r"[^a-z0-9]+", "-", bare)
    return lowered.strip("-")[:MAX_NAME].rstrip("-")


def check_name(name: str, what: str, *, limit: int = MAX_NAME) -> str:
    """Return ``name`` if it is a valid Kubernetes label, else raise with the name to write instead."""
    if len(name) <= limit and _LABEL.fullmatch(name):
        return name
    better = build_slug(name)[:limit].rstrip("-")
    advice = f" Write {better!r} instead." if better and better != name else ""
    shown = repr(name) if len(name) <= 2 * MAX_NAME else f"{name[:40]!r}... ({len(name):,} characters)"
    raise InvalidError(
        f"The {what} name {shown} cannot be used: a name is 1 to {limit} lower-case letters, digits and '-', and "
        f"begins and ends with a letter or digit.{advice}"
    )


def check_common_name(name: str) -> str:
    """Return ``name`` if a certificate may have it as its subject's common name (CN), else raise."""
    if not _COMMON_NAME.fullmatch(name):
        raise InvalidError(
            f"{name!r:.80} is no name of a certificate. Use letters, digits, '-' and '.', 64 at most: ada.example"
        )
    return name


def check_locator(text: object, what: str) -> str:
    """Return ``text`` if it is ``file.py:name`` or ``package.module:name``, else raise."""
    if isinstance(text, str):
        place, _, name = text.partition(":")
        if place.strip() and name and not name.startswith(":") and not any(sign.isspace() for sign in name):
            return text
    raise InvalidError(f"The {what} {text!r:.60} cannot be read. Write 'file.py:name' or 'package.module:name'.")


def check_model_address(address: str, *, what: str = "The model") -> str:
    """Return ``address`` if it is ``models:/name/3`` or ``models:/name@alias``, else raise with what to write."""
    if _MODEL_ADDRESS.fullmatch(address):
        return address
    raise InvalidError(f"{what} {address!r} {describe_wrong_model_address(address)}")


def describe_wrong_model_address(address: str) -> str:
    """Return what is wrong with an address of the registry that is none, and what to write."""
    text = address.removeprefix("models:").strip("/@ ")
    if re.fullmatch(r"[^/@:\s]+[/@][^/@:\s]+", text):  # lin/2
        better = f"'models:/{text}'"
    else:
        name = "name" if not text or set(text) & set("/@:") else text
        better = f"'models:/{name}@champion' or 'models:/{name}/1'"
    return f"is not an address in the registry. Write {better}."


def format_environment_name(app: str, team: str) -> str:
    return f"scanflow-{app}-{team}"


def make_run_name(rng: random.Random) -> RunName:
    return RunName(f"{rng.choice(_ADJECTIVES)}-{rng.choice(_NOUNS)}-{rng.randrange(1000):03d}")
