"""The pages of settings: the caller's role, roles, webhooks and usage; for admins tokens and the audit log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, get_args
from urllib.parse import quote, urlsplit

from pydantic import ValidationError

from scanflow import __version__
from scanflow.errors import InvalidError
from scanflow.http.home_token import Role
from scanflow_server.control.notifications import FAILED, build_targets
from scanflow_server.dashboard.dashboard_page import DashboardPage, PageAction, PageRequest, PageView
from scanflow_server.dashboard.page_cells import Cell, CellRow, CellTable, LinkCell, Moment, StateCell
from scanflow_server.dashboard.page_html import render
from scanflow_server.dashboard.page_windows import (
    WINDOW,
    TableWindow,
    list_numbered_neighbours,
    parse_number,
    read_choice,
)
from scanflow_server.request_problems import format_errors
from scanflow_server.routes import audit_routes, token_routes
from scanflow_server.routes.token_routes import TokenBody, describe_token, make_named_token
from scanflow_server.store import application_store, event_store, usage, webhook_positions
from scanflow_server.store.audit_store import AuditEntry
from scanflow_server.store.token_store import HOME, TokenRow
from scanflow_server.token_roles import ACTIVITIES, PERMISSIONS

SETTINGS, TOKENS, AUDIT = "/settings", "/settings/tokens", "/settings/audit"
_DAY_S, _MAX_DAYS = 86_400.0, 36_500.0


def load_settings(request: PageRequest) -> PageView:
    context, caller = request.context, request.caller
    return PageView.make(
        "Settings",
        "scanflow status",
        is_admin=request.may("administer", caller.team),
        caller_role=caller.role,
        scope=_format_team(caller.team),
        zone=str(request.zone),
        roles=CellTable(("role", "may"), [[role, _describe_role(role)] for role in get_args(Role)]),
        webhooks=_build_webhook_table(request),
        usage=_build_usage_table(request),
        server=[
            ("Version", __version__),
            ("Home", "" if caller.team is not None else str(context.settings.home)),
            ("Database", "" if caller.team is not None else context.store.address),
        ],
        started=context.started,
        signs_in=request.signs_in,
    )


def _describe_role(role: Role) -> str:
    return "; ".join(text for permission, text in ACTIVITIES.items() if permission in PERMISSIONS[role])


def _format_team(team: str | None) -> str:
    return "all teams" if team is None else f"the team {team}"


def _build_webhook_table(request: PageRequest) -> CellTable:
    rows: list[CellRow] = []
    with request.context.store.read() as connection:
        for row in application_store.list_all(connection, team=request.caller.team):
            targets = build_targets(row)
            about: Any = {"app": row.name, "team": row.team, "limit": 1}
            failures = event_store.list_newest(connection, type=[FAILED], **about) if targets else []
            rows += [
                {
                    "application": LinkCell(row.name, f"/applications/{quote(row.name, safe='')}"),
                    "team": row.team,
                    "to": mask_webhook(target.webhook.url),
                    "on": ", ".join(target.webhook.on),
                    "signed": "yes" if target.webhook.secret else "no",
                    "sent until event": webhook_positions.find_position(connection, target.key),
                    "last failure": Moment(failures[0].at) if failures else None,
                }
                for target in targets
            ]
    return CellTable.make(rows, "No application has a webhook: sf.Application(notify=[sf.Webhook(url=…)]).")


def mask_webhook(url: str) -> str:
    """Return the address of a webhook without its path, which may be a secret; a reference as it is."""
    if url.startswith(("env:", "file:")):
        return url
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}/…"


def _build_usage_table(request: PageRequest) -> CellTable:
    caller, most = request.caller, request.context.settings.max_team_mib
    with request.context.store.read() as connection:
        stored = usage.list_all(connection)
    rows: list[list[Cell]] = [
        [team or "no team", f"{n_bytes / 2**20:,.1f} MiB", f"{most:,} MiB" if most else "no limit"]
        for team, n_bytes in sorted(stored.items())
        if caller.can_see(team)
    ]
    return CellTable(("team", "stored", "at most"), rows, "Nothing is stored yet.", "scanflow run")


def load_tokens(request: PageRequest) -> PageView:
    request.caller.check("administer", request.caller.team)
    window = TableWindow.read(request)
    tokens = token_routes.tokens(request.context, request.caller)[::-1][window.start : window.start + WINDOW + 1]
    return PageView.make(
        "Tokens",
        "scanflow token list",
        is_admin=True,
        tokens=[(token, _get_token_state(token, request.now)) for token in tokens[:WINDOW]],
        roles=get_args(Role),
        home=HOME,
        own_team=request.caller.team,
        format_team=_format_team,
        **window.list_neighbours(len(tokens)),
    )


def _get_token_state(token: TokenRow, now: float) -> str:
    if token.revoked is not None:
        return "revoked"
    return "expired" if token.expires is not None and token.expires <= now else "valid"


def make_token(request: PageRequest, form: Mapping[str, str]) -> str:
    token = make_named_token(request.context, request.caller, _read_token_form(form))
    request.describe(describe_token(token))
    return render(
        "token", title="A new token", row=token, token=token.token, server=request.context.public_url, back=TOKENS
    )


def _read_token_form(form: Mapping[str, str]) -> TokenBody:
    values: dict[str, object] = {name: form[name] for name in ("name", "role", "team") if form.get(name)}
    if days := form.get("days", "").strip():
        if not days.replace(".", "", 1).isdecimal() or not 0 < float(days) <= _MAX_DAYS:
            raise InvalidError(f"{days!r:.40} is no number of days. Write 90, or nothing.")
        values["expires_s"] = float(days) * _DAY_S
    try:
        return TokenBody.model_validate(values)
    except ValidationError as error:
        raise InvalidError(format_errors(error.errors())) from error


def revoke_token(request: PageRequest, _form: Mapping[str, str]) -> str:
    token_routes.revoke(request.context, request.caller, request.parameters["name"])
    return TOKENS


def load_audit(request: PageRequest) -> PageView:
    request.caller.check("administer", request.caller.team)
    about: Any = {"who": request.filters.get("who"), "before": parse_number(request.query.get("before", ""))}
    about |= {"refused": read_choice(request, "answers", ["refused"]) is not None}
    entries = audit_routes.audit(request.context, request.caller, limit=WINDOW + 1, **about)
    return PageView.make(
        "Audit log",
        request.build_command("scanflow audit", answers="--refused", who="--who {}"),
        is_admin=True,
        table=CellTable.make(map(_build_entry_row, entries[:WINDOW]), "No entry yet."),
        **list_numbered_neighbours(request, [entry.id for entry in entries]),
    )


def _build_entry_row(entry: AuditEntry) -> CellRow:
    return {
        "answer": StateCell("refused" if entry.status >= 400 else "succeeded"),
        "when": Moment(entry.at),
        "who": entry.who or "nobody",
        "role": " of ".join(filter(None, [entry.role, entry.team])),
        "from": entry.address,
        "request": f"{entry.method} {entry.path}",
        "about": entry.what,
    }


SERVED: Final = (
    DashboardPage(path=SETTINGS, template="settings", load=load_settings),
    DashboardPage(path=TOKENS, template="tokens", load=load_tokens),
    DashboardPage(path=AUDIT, template="audit", load=load_audit),
    PageAction(path=TOKENS, perform=make_token, permission="administer"),
    PageAction(path=f"{TOKENS}/{{name}}/revoke", perform=revoke_token, permission="administer"),
)
