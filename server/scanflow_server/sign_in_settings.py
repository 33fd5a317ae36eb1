"""The settings of sign-in by OpenID Connect: the provider, this server's account there, and what groups give."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Annotated, Any, Final, NamedTuple, Self, get_args
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr

from scanflow.app.secrets import Secret
from scanflow.environment_variables import list_variables, read_settings
from scanflow.errors import InvalidError, UsageError
from scanflow.http.home_token import Role
from scanflow.http.security import is_loopback_host

PREFIX: Final = "SCANFLOW_OIDC_"
ALL_TEAMS: Final = "*"
_RULE: Final = re.compile(r"(?P<group>.+)=(?P<team>\*|[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?):(?P<role>\w+)")


class GroupRule(NamedTuple):
    """What members of one of the provider's groups may do here."""

    group: str
    team: str | None
    """None: all teams."""

    role: Role


def parse_group_rules(text: Any) -> Any:
    """Read ``GROUP=TEAM:ROLE``, one a line or separated by semicolons; a name of a group may have ``=`` and ``:``."""
    if not isinstance(text, str):
        return text
    return tuple(_parse_rule(line.strip()) for line in re.split(r"[;\n]", text) if line.strip())


def _parse_rule(line: str) -> GroupRule:
    rule = _RULE.fullmatch(line)
    if rule is None:
        raise InvalidError(f"{line!r} maps no group. Write GROUP=TEAM:ROLE, with {ALL_TEAMS} as TEAM for all teams")
    if rule["role"] not in get_args(Role):
        raise InvalidError(
            f"{line!r} names the role {rule['role']!r}, which does not exist. Use one of {', '.join(get_args(Role))}"
        )
    return GroupRule(rule["group"].strip(), None if rule["team"] == ALL_TEAMS else rule["team"], rule["role"])  # type: ignore[arg-type]  # checked above


def choose_rule(groups: Collection[str], rules: Collection[GroupRule]) -> GroupRule | None:
    """Return the first rule of a group that a person is in; None: there is none.

    The first alone: rights of two rules are never joined.
    """
    return next((rule for rule in rules if rule.group in groups), None)


def check_address(url: str) -> str:
    """Refuse an address of a provider at which what is sent could be read or changed on its way."""
    parts = urlsplit(url)
    is_private = parts.scheme == "https" or (parts.scheme == "http" and is_loopback_host(parts.hostname or ""))
    if not (is_private and parts.hostname) or parts.query or parts.fragment or parts.username is not None:
        raise InvalidError(
            "an address of the provider is https://HOST/..., without a query; http:// is for this machine alone"
        )
    return url


def _check_reference(secret: SecretStr) -> SecretStr:
    Secret(source=secret.get_secret_value())  # its error does not repeat what may be the secret itself
    return secret


class SignInSettings(BaseModel):
    """The provider at which people sign in, each field from ``SCANFLOW_OIDC_<FIELD>``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    issuer: Annotated[str, AfterValidator(check_address)]
    """Whose sign-in counts: the address below which the provider has ``/.well-known/openid-configuration``."""

    client_id: str = ""
    """The name by which the provider knows this server."""

    client_secret: Annotated[SecretStr, AfterValidator(_check_reference)] | None = None
    """A reference to the secret for that name: ``env:NAME``, ``file:PATH`` (relative to the home) or
    ``k8s:SECRET/KEY``. It is read for each sign-in; steps and
    agents do not inherit it. Unset: there is none (a public client; PKCE is always used)."""

    groups: Annotated[tuple[GroupRule, ...], BeforeValidator(parse_group_rules)] = ()
    """What groups may do: ``GROUP=TEAM:ROLE``, one a line or separated by semicolons. ``*`` as TEAM is all
    teams. The first that fits counts."""

    groups_claim: str = "groups"
    """The claim with the names of a person's groups."""

    scopes: str = "openid email profile"
    """What to ask the provider for. Some give groups only for a scope of its own: ``openid email groups``."""

    label: str = ""
    """What the button says after "Sign in with". Unset: the issuer's host."""

    session_hours: float = Field(default=8.0, gt=0, le=24 * 30, allow_inf_nan=False)
    """How long a person stays signed in, in hours: a working day. Who leaves a group has its rights until then."""

    token_hours: float = Field(default=24.0, gt=0, le=24 * 30, allow_inf_nan=False)
    """How long a token is valid that a person makes by signing in, in hours. Short, for the same reason."""

    @property
    def name(self) -> str:
        return self.label or urlsplit(self.issuer).netloc

    @classmethod
    def name_variables(cls) -> dict[str, str]:
        """Return the environment variable of each field."""
        return list_variables(cls, PREFIX)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Self | None:
        """Read the settings; None: people sign in with tokens alone.

        Raises:
            UsageError: a variable is missing or invalid; the message says which.
        """
        variables = cls.name_variables()
        present = [name for name in variables.values() if environ.get(name)]
        if not present:
            return None
        if not environ.get(variables["issuer"]):
            raise UsageError(f"{present[0]} is set, but no provider. Set SCANFLOW_OIDC_ISSUER, or unset {present[0]}.")
        settings = read_settings(cls, variables, environ)
        if not settings.client_id:
            raise UsageError(
                "SCANFLOW_OIDC_ISSUER is set, but not the name by which that provider knows this server. Set "
                "SCANFLOW_OIDC_CLIENT_ID."
            )
        if not settings.groups:
            raise UsageError(
                "SCANFLOW_OIDC_ISSUER is set, but no group of it may do anything, so that nobody could sign in. Set "
                "SCANFLOW_OIDC_GROUPS='GROUP=TEAM:ROLE'."
            )
        return settings
