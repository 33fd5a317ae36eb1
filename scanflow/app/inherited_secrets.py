"""Secrets in variables, which the processes of an application inherit from the one that starts them. Pure."""

from __future__ import annotations

from scanflow.app.application import Application
from scanflow.app.secrets import iterate_secrets


def list_inherited_sources(app: Application) -> list[str]:
    """Return the references of an application to variables: ``env:NAME``."""
    texts = [text for webhook in app.notify for text in (webhook.url, webhook.secret)]
    texts += [workflow.serving.auth for workflow in app.workflows if workflow.serving is not None]
    texts += [] if app.tracker is None else [app.tracker.uri]
    texts += [secret.source for secret in iterate_secrets(app)]
    return sorted({text for text in texts if text is not None and text.startswith("env:")})
