# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl controller ensure-quota|delete-quota|list-quotas`: how much people may have."""

from __future__ import annotations

from typing import Any

import click

from vgpuctl.cli.command import make_command
from vgpuctl.cli.command_table import CONTROLLER_COMMANDS
from vgpuctl.cli.commands.controller import Where, at_controller, changed_page, changes_at_controller, make_call
from vgpuctl.cli.global_options import Settings
from vgpuctl.cli.shown import Column, Listing, Page
from vgpuctl.model.numbers import format_mib, parse_memory_size


def _number(number: int | None) -> str:
    return "-" if number is None else str(number)


QUOTAS = Listing(
    "quotas",
    (
        Column("who", "WHO", lambda one: one.who),
        Column("desktops", "DESKTOPS", lambda one: one.desktops, numeric=True, text=lambda one: _number(one.desktops)),
        Column("running", "RUNNING", lambda one: one.running, numeric=True, text=lambda one: _number(one.running)),
        Column(
            "gpu", "GPU MEMORY", lambda one: one.gpu_mib, numeric=True, unit="mib",
            text=lambda one: "-" if one.gpu_mib is None else format_mib(one.gpu_mib),
        ),
        Column("set_by", "SET BY", lambda one: one.set_by),
    ),
    lambda one: str(one.who),
)  # fmt: skip


def _limits_text(one: Any) -> str:
    parts = [
        f"{number} {word}"
        for number, word in ((one.desktops, "desktops"), (one.running, "running"))
        if number is not None
    ]
    return ", ".join([*parts, *([] if one.gpu_mib is None else [f"{format_mib(one.gpu_mib)} of GPU memory"])])


def _set_page(data: Any) -> Page:
    return changed_page(
        data, f"{data.data.who}: at most {_limits_text(data.data)}{'' if data.changed else ', as before'}"
    )


def _deleted_page(data: Any) -> Page:
    return changed_page(data, f"{data.data.who}: no quota any more")


def _mib(_: click.Context, __: click.Parameter, text: str | None) -> int | None:
    try:
        return None if text is None else parse_memory_size(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@make_command(
    "ensure-quota", table=CONTROLLER_COMMANDS, page=_set_page,
    examples=(
        ("vgpuctl controller ensure-quota everybody --desktops 2 --gpu 16GiB", "each person, of all pools together"),
        ("vgpuctl controller ensure-quota @cad --desktops 3 --gpu 96GiB", "each one of the group, instead of that"),
        ("vgpuctl controller ensure-quota ada --running 1", "only one desktop at a time, and nothing else"),
    ),
)  # fmt: skip
@click.argument("who", metavar="WHO")
@click.option("--desktops", metavar="N", type=click.IntRange(0, 1_000_000), help="Desktops. [not limited]")
@click.option("--running", metavar="N", type=click.IntRange(0, 1_000_000), help="Desktops that run. [not limited]")
@click.option(
    "--gpu", "gpu_mib", metavar="SIZE", callback=_mib,
    help="GPU memory of all vGPUs of a person's desktops. [not limited]",
)  # fmt: skip
@changes_at_controller
@click.pass_obj
def ensure_quota(
    settings: Settings, who: str, desktops: int | None, running: int | None, gpu_mib: int | None, where: Where
) -> int:
    """Limit how much a person, each one of @GROUP, or everybody may have in all pools.

    A person's own quota decides; else those of his groups, the largest of each limit; else everybody's. Nobody loses
    what he has. An operator who assigns a desktop is held to it, too.
    """
    return make_call(settings, where, "ensure-quota", who=who, desktops=desktops, running=running, gpu_mib=gpu_mib)


@make_command(
    "delete-quota", table=CONTROLLER_COMMANDS, page=_deleted_page,
    examples=(("vgpuctl controller delete-quota ada", "her groups' quota, or everybody's, decides again"),),
)  # fmt: skip
@click.argument("who", metavar="WHO")
@changes_at_controller
@click.pass_obj
def delete_quota(settings: Settings, who: str, where: Where) -> int:
    """Take a quota away."""
    return make_call(settings, where, "delete-quota", who=who)


@make_command(
    "list-quotas", table=CONTROLLER_COMMANDS, listing=QUOTAS,
    examples=(("vgpuctl controller list-quotas", "who may have how much"),),
)  # fmt: skip
@at_controller
@click.pass_obj
def list_quotas(settings: Settings, where: Where) -> int:
    """List the quotas."""
    return make_call(settings, where, "list-quotas")


COMMANDS: dict[str, click.Command] = {str(one.name): one for one in (ensure_quota, delete_quota, list_quotas)}
