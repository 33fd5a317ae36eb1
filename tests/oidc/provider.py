"""A provider of OpenID Connect: Django's, with django-oauth-toolkit.

``python -m tests.oidc.provider FOLDER HOST PORT REDIRECT_URI``. People are in its database, log in at its page with a
password, and consent. It knows one client, by the name and the secret in the environment.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import django
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from django.conf import settings
from django.core.management import call_command
from django.core.wsgi import get_wsgi_application

from tests.oidc import PASSWORDS

PAGES = "tests.oidc.pages"
LOGIN = """<!doctype html><title>Log in</title><form method="post">{% csrf_token %}
<input name="username" autofocus><input name="password" type="password"><button>Log in</button>
<input type="hidden" name="next" value="{{ next }}"></form>"""


def make_key() -> str:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    form, none = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, form, none).decode()


def configure(folder: Path, address: str) -> None:
    login = "django.template.loaders.locmem.Loader", {"registration/login.html": LOGIN}
    loaders = [login, "django.template.loaders.app_directories.Loader"]
    settings.configure(
        ALLOWED_HOSTS=["*"],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": folder / "provider.db"}},
        DEFAULT_AUTO_FIELD="django.db.models.AutoField",
        INSTALLED_APPS=[f"django.contrib.{name}" for name in ("auth", "contenttypes", "sessions")]
        + ["oauth2_provider"],
        LOGIN_URL="/accounts/login/",
        MIDDLEWARE=[
            "django.contrib.sessions.middleware.SessionMiddleware",
            "django.middleware.csrf.CsrfViewMiddleware",
            "django.contrib.auth.middleware.AuthenticationMiddleware",
        ],
        OAUTH2_PROVIDER={
            "OAUTH2_VALIDATOR_CLASS": f"{PAGES}.Validator",
            "OIDC_ENABLED": True,
            "OIDC_ISS_ENDPOINT": f"{address}/o",
            "OIDC_RSA_PRIVATE_KEY": make_key(),
            "PKCE_REQUIRED": True,
            "SCOPES": {"openid": "to know you", "email": "your address", "groups": "your groups"},
        },
        ROOT_URLCONF=PAGES,
        SECRET_KEY="of a test",
        TEMPLATES=[{"BACKEND": "django.template.backends.django.DjangoTemplates", "OPTIONS": {"loaders": loaders}}],
        USE_TZ=True,
    )
    django.setup()


def fill(redirect_uri: str) -> None:
    from django.contrib.auth.models import Group, User
    from oauth2_provider.models import Application

    call_command("migrate", verbosity=0)
    for name, password in PASSWORDS.items():
        User.objects.create_user(name, f"{name}@example.org", password)
    User.objects.get(username="ada").groups.add(Group.objects.create(name="vision-editors"))
    Application.objects.create(
        client_id=os.environ["CLIENT_ID"],
        client_secret=os.environ["CLIENT_SECRET"],
        client_type="confidential",
        authorization_grant_type="authorization-code",
        algorithm="RS256",
        redirect_uris=redirect_uri,
        name="Scanflow",
    )


class ThreadingServer(ThreadingMixIn, WSGIServer):
    """A browser keeps its connection, and the client asks meanwhile."""

    daemon_threads = True


class Handler(WSGIRequestHandler):
    def log_message(self, *_: object) -> None:
        """Be silent."""


if __name__ == "__main__":
    folder, host, port, redirect_uri = sys.argv[1:]
    configure(Path(folder), f"http://{host}:{port}")
    fill(redirect_uri)
    make_server(host, int(port), get_wsgi_application(), ThreadingServer, Handler).serve_forever()
