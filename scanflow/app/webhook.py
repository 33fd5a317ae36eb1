"""Webhooks that notify people of what needs their attention."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Literal, Self, get_args
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from scanflow.app.model import Model, as_tuple
from scanflow.app.secrets import SecretText
from scanflow.errors import InvalidError

News = Literal["approval", "drift", "run_failed", "promoted", "reverted"]

_REFERENCE = "(env|file):.+"


def check_url(url: str) -> str:
    """Return a valid webhook address. An error does not repeat the address, which may be a secret."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.username is None
        parts.port  # noqa: B018  # raises where the port is no number
    except ValueError:
        usable = False
    if not usable or not url.isascii() or not url.isprintable() or " " in url:
        raise InvalidError("The address of a webhook must be an http or https URL without a user name. Write https://…")
    return url


class Webhook(Model):
    """An address that the server posts notifications to as JSON, which Slack's incoming webhooks accept.

    The address and the secret are the server's to read: from its environment, or from files.
    """

    url: SecretText = Field(repr=False)
    """The address, or a reference to it if it is a secret, as Slack's are: ``sf.secret("env:NAME")``, or ``file:``."""

    secret: SecretText | None = Field(default=None, repr=False)
    """A reference, as ``sf.secret("env:NAME")`` or ``file:PATH``, to the key that signs messages. Unset: they are not
    signed."""

    on: Annotated[Sequence[News], AfterValidator(as_tuple)] = get_args(News)
    """The events that are sent: a pending approval, drift, a failed run, a promoted model, or a rejected model version
    or reverted action."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.secret is not None and not re.fullmatch(_REFERENCE, self.secret):
            raise InvalidError(
                "Webhook.secret is a reference to the secret, not the secret itself. Write env:NAME or file:PATH."
            )
        if not re.fullmatch(_REFERENCE, self.url):
            check_url(self.url)
        return self
