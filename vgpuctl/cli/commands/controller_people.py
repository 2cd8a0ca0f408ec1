# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl controller ensure-person|entitle|add-token|...`: people, what they may do, and API tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from vgpuctl.cli import run
from vgpuctl.cli.command import make_command
from vgpuctl.cli.command_table import CONTROLLER_COMMANDS
from vgpuctl.cli.commands.controller import (
    Where,
    at_controller,
    changed_page,
    changes_at_controller,
    confirm,
    connect,
    make_call,
    pairs_page,
)
from vgpuctl.cli.global_options import Settings
from vgpuctl.cli.shown import Column, Listing, Page
from vgpuctl.model.quota_text import limit_text

if TYPE_CHECKING:
    from vgpuctl.cli.entry import SignalGuard
    from vgpuctl.model.results.people import ApiTokenResult, EntitlementResult, PersonResult

MAX_PASSWORD_BYTES = 1024
PEOPLE = Listing(
    "people",
    (
        Column("name", "NAME", lambda person: person.name),
        Column("realm", "REALM", lambda person: person.realm),
        Column("groups", "GROUPS", lambda person: person.groups),
        Column("disabled", "DISABLED", lambda person: person.disabled),
        Column("signed_in", "SIGNED IN", lambda person: person.signed_in),
        Column("shown", "FULL NAME", lambda person: person.shown, level="wide", free_text=True),
    ),
    lambda person: str(person.name),
)
ENTITLEMENTS = Listing(
    "entitlements",
    (
        Column("who", "WHO", lambda one: one.who),
        Column("right", "RIGHT", lambda one: one.right),
        Column("pool", "POOL", lambda one: one.pool or "(the fleet)"),
    ),
    lambda one: str(one.who),
)
TOKENS = Listing(
    "tokens",
    (
        Column("name", "NAME", lambda token: token.name),
        Column("person", "PERSON", lambda token: token.person),
        Column("role", "ROLE", lambda token: token.role),
        Column("right", "RIGHT", lambda token: token.right),
        Column("pools", "POOLS", lambda token: token.pools),
        Column("created", "CREATED", lambda token: token.created),
        Column("expires", "EXPIRES", lambda token: token.expires),
    ),
    lambda token: str(token.name),
)


def _person_page(data: PersonResult) -> Page:
    page = pairs_page(data, "name", "realm", "groups", "disabled", "has_password", "shown", "signed_in")
    rights = [
        f"{one.right} of {one.pool or 'the fleet'}{'' if one.who == data.name else f' (by {one.who})'}"
        for one in data.rights
    ]
    limits = [f"{limit_text(one.name, one.used, one.most)} (quota of {one.who})" for one in data.limits]
    return Page([*page.blocks, *(rights or ["no rights"]), *limits])


def _changed_person(data: Any) -> Page:
    person: PersonResult = data.data
    state = "disabled" if person.disabled else ", ".join(person.groups) or "no groups"
    return changed_page(data, f"person {person.name}: {state if data.changed else 'unchanged'}")


def _password_page(data: Any) -> Page:
    person: PersonResult = data.data
    if person.password is not None:
        return Page([person.password], [f"the new password of {person.name} is shown this once"])
    return Page([f"person {person.name}: the password is set"])


def _deleted_person(data: Any) -> Page:
    return changed_page(data, f"person {data.data.name}: deleted")


def _entitled(data: Any) -> Page:
    one: EntitlementResult = data.data
    where = "the fleet" if one.pool is None else f"pool {one.pool}"
    return changed_page(data, f"{one.who}: {one.right} of {where}{'' if data.changed else ', as before'}")


def _revoked(data: Any) -> Page:
    one: EntitlementResult = data.data
    where = "the fleet" if one.pool is None else f"pool {one.pool}"
    return changed_page(data, f"{one.who}: no longer {one.right} of {where}")


def _token_page(data: Any) -> Page:
    token: ApiTokenResult = data.data
    if token.secret is None:
        return changed_page(data, f"token {token.name}: deleted")
    what = token.role or f"{token.right} on {', '.join(token.pools)}"
    return Page([token.secret], [f"token {token.name}: {what}; its secret is shown this once"])


@make_command(
    "list-people", table=CONTROLLER_COMMANDS, listing=PEOPLE,
    examples=(("vgpuctl controller list-people", "who signs in, or has a desktop"),),
)  # fmt: skip
@at_controller
@click.pass_obj
def list_people(settings: Settings, where: Where) -> int:
    """List the people who sign in, or have desktops."""

    def work(guard: SignalGuard) -> run.CommandOutput:
        from vgpuctl.model.outcome import QueryResult

        client = connect(settings, *where)
        rows: list[PersonResult] = []
        while True:
            page = client.call("list-people", after=rows[-1].name if rows else None).data
            rows += page
            if len(page) < 1000:
                return run.CommandOutput(QueryResult(tuple(rows)))

    return run.perform(settings, "controller-list-people", work)


@make_command(
    "show-person", table=CONTROLLER_COMMANDS, page=_person_page,
    examples=(("vgpuctl controller show-person ada", "with the groups as at the last log-in"),),
)  # fmt: skip
@click.argument("name", metavar="PERSON")
@at_controller
@click.pass_obj
def show_person(settings: Settings, name: str, where: Where) -> int:
    """Show one person."""
    return make_call(settings, where, "show-person", name=name)


@make_command(
    "ensure-person", table=CONTROLLER_COMMANDS, page=_changed_person,
    examples=(
        ("vgpuctl controller ensure-person ada --group staff", "then: vgpuctl controller set-password ada"),
        ("vgpuctl controller ensure-person ada --disabled", "she is signed out at once, and keeps her desktops"),
    ),
)  # fmt: skip
@click.argument("name", metavar="PERSON")
@click.option("--group", "groups", metavar="GROUP", multiple=True, help="All groups, one each. [as they are]")
@click.option("--no-groups", is_flag=True, help="In no group.")
@click.option("--disabled/--enabled", default=None, help="Whether the person can sign in.")
@click.option("--realm", type=click.Choice(("local", "oidc", "ldap")), help="Who checks the password. [local]")
@changes_at_controller
@click.pass_obj
def ensure_person(
    settings: Settings, name: str, groups: tuple[str, ...], no_groups: bool, disabled: bool | None, realm: str | None,
    where: Where,
) -> int:  # fmt: skip
    """Make a person, or change one; what is not given stays.

    A person of a directory (oidc, ldap) needs no such command: signing in makes him, and replaces his groups.
    """
    if no_groups and groups:
        raise click.UsageError("--no-groups and --group: give one of them")
    given = list(groups) if groups or no_groups else None
    return make_call(settings, where, "ensure-person", name=name, groups=given, disabled=disabled, realm=realm)


@make_command(
    "set-password", table=CONTROLLER_COMMANDS, page=_password_page,
    examples=(
        ("vgpuctl controller set-password ada", "makes one, and shows it this once"),
        ("vgpuctl controller set-password ada --password-file FILE", "this one, at least 12 characters"),
    ),
)  # fmt: skip
@click.argument("name", metavar="PERSON")
@click.option(
    "--password-file", metavar="FILE", type=click.Path(dir_okay=False), help="Its first line; without: a new one."
)
@at_controller
@click.pass_obj
def set_password(settings: Settings, name: str, password_file: str | None, where: Where) -> int:
    """Give a local person a password; he is signed out everywhere."""

    def work(guard: SignalGuard) -> run.CommandOutput:
        password = None if password_file is None else read_password(password_file)
        return run.CommandOutput(connect(settings, *where).call("set-password", name=name, password=password))

    return run.perform(settings, "controller-set-password", work)


def read_password(path: str) -> str:
    """Return the first line of a file.

    Raises:
        FileFailed: it cannot be read.
    """
    from vgpuctl.errors import FileFailed
    from vgpuctl.regular_file import read_regular_file

    try:
        return read_regular_file(path, MAX_PASSWORD_BYTES).decode().partition("\n")[0].removesuffix("\r")
    except (OSError, ValueError) as error:
        raise FileFailed(f"the password's file {path} cannot be read: {error}", path=path) from error


@make_command(
    "delete-person", table=CONTROLLER_COMMANDS, page=_deleted_person,
    examples=(("vgpuctl controller delete-person ada", "not while she has a desktop"),),
)  # fmt: skip
@click.argument("name", metavar="PERSON")
@changes_at_controller
@click.pass_obj
def delete_person(settings: Settings, name: str, where: Where) -> int:
    """Delete a person, with all that he may do."""

    def work(guard: SignalGuard) -> run.CommandOutput:
        client = connect(settings, *where)
        confirm(settings, f"Delete the person {name}, with all that he may do?", dry_run=where.dry_run)
        return run.CommandOutput(client.call("delete-person", name=name))

    return run.perform(settings, "controller-delete-person", work)


@make_command(
    "entitle", table=CONTROLLER_COMMANDS, page=_entitled,
    examples=(
        ("vgpuctl controller entitle @staff use --pool office", "each of them can take a desktop"),
        ("vgpuctl controller entitle everybody use --pool office", "each person who can sign in"),
        ("vgpuctl controller entitle ada admin", "everything, in the whole fleet"),
    ),
)  # fmt: skip
@click.argument("who", metavar="WHO")
@click.argument("right", metavar="RIGHT")
@click.option("--pool", metavar="POOL", help="Where RIGHT holds; without: RIGHT is a role in the fleet.")
@changes_at_controller
@click.pass_obj
def entitle(settings: Settings, who: str, right: str, pool: str | None, where: Where) -> int:
    """Let a person, @GROUP or everybody use, operate or manage a pool; or be viewer, operator or admin.

    use: take a desktop. operate: give and take desktops, start and stop them, pause the pool. manage: change its image,
    spares and schedules, and say who uses and operates it. Each includes the ones before. RIGHT replaces a former one.
    """
    return make_call(settings, where, "entitle", who=who, right=right, pool=pool)


@make_command(
    "revoke", table=CONTROLLER_COMMANDS, page=_revoked,
    examples=(("vgpuctl controller revoke @staff --pool office", "desktops that they have stay theirs: release"),),
)  # fmt: skip
@click.argument("who", metavar="WHO")
@click.argument("right", metavar="[RIGHT]", required=False)
@click.option("--pool", metavar="POOL", help="The pool; without: the role in the fleet.")
@changes_at_controller
@click.pass_obj
def revoke(settings: Settings, who: str, right: str | None, pool: str | None, where: Where) -> int:
    """Take back what entitle gave; with RIGHT only if it is this one."""
    return make_call(settings, where, "revoke", who=who, right=right, pool=pool)


@make_command(
    "list-entitlements", table=CONTROLLER_COMMANDS, listing=ENTITLEMENTS,
    examples=(("vgpuctl controller list-entitlements --pool office", "who may what with it"),),
)  # fmt: skip
@click.option("--pool", metavar="POOL", help="Only those of this pool.")
@at_controller
@click.pass_obj
def list_entitlements(settings: Settings, pool: str | None, where: Where) -> int:
    """List who may what."""
    return make_call(settings, where, "list-entitlements", pool=pool)


@make_command(
    "add-token", table=CONTROLLER_COMMANDS, page=_token_page,
    examples=(
        ("vgpuctl controller add-token ansible --role operator > token", "the secret, on stdout alone"),
        ("vgpuctl controller add-token ci --right operate --pool test --days 30", "nothing but the pool test"),
    ),
)  # fmt: skip
@click.argument("name", metavar="NAME")
@click.option("--role", type=click.Choice(("admin", "operator", "viewer")), help="In the whole fleet. [viewer]")
@click.option("--right", type=click.Choice(("operate", "manage")), help="On the pools that --pool names, instead.")
@click.option("--pool", "pools", metavar="POOL", multiple=True, help="For --right; may be given several times.")
@click.option("--days", metavar="N", type=click.IntRange(1, 3650), help="It expires after so many days.")
@at_controller
@click.pass_obj
def add_token(
    settings: Settings, name: str, role: str | None, right: str | None, pools: tuple[str, ...], days: int | None,
    where: Where,
) -> int:  # fmt: skip
    """Make an API token. viewer: look. operator: pools and desktops too. admin: everything."""
    return make_call(
        settings, where, "add-token", name=name, role=role, right=right, pools=list(pools) or None, days=days
    )


@make_command(
    "list-tokens", table=CONTROLLER_COMMANDS, listing=TOKENS,
    examples=(("vgpuctl controller list-tokens", "without their secrets, which nobody can read"),),
)  # fmt: skip
@at_controller
@click.pass_obj
def list_tokens(settings: Settings, where: Where) -> int:
    """List the API tokens, and those that people made for themselves."""
    return make_call(settings, where, "list-tokens")


@make_command(
    "delete-token", table=CONTROLLER_COMMANDS, page=_token_page,
    examples=(
        ("vgpuctl controller delete-token ansible", "it opens nothing any more"),
        ("vgpuctl controller delete-token laptop --person ada", "one that ada made for herself"),
    ),
)  # fmt: skip
@click.argument("name", metavar="TOKEN")
@click.option("--person", metavar="PERSON", help="Whose own token it is.")
@changes_at_controller
@click.pass_obj
def delete_token(settings: Settings, name: str, person: str | None, where: Where) -> int:
    """Delete an API token, or one that a person made on his page."""
    return make_call(settings, where, "delete-token", name=name, person=person)


COMMANDS: dict[str, click.Command] = {
    str(one.name): one
    for one in (
        list_people, show_person, ensure_person, set_password, delete_person, entitle, revoke, list_entitlements,
        add_token, list_tokens, delete_token,
    )
}  # fmt: skip
