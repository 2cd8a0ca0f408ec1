# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl controller` about images."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from vgpuctl.cli.command import make_command
from vgpuctl.cli.command_table import CONTROLLER_COMMANDS
from vgpuctl.cli.commands.controller import (
    Where,
    at_controller,
    changed_page,
    changes_at_controller,
    make_call,
    pairs_page,
)
from vgpuctl.cli.global_options import Settings
from vgpuctl.cli.shown import Column, Listing, Page

if TYPE_CHECKING:
    from vgpuctl.model.results.fleet import FleetImageResult


def _host_states(image: FleetImageResult) -> tuple[str, ...]:
    """Return on how many hosts an image is in each state."""
    counts = Counter(text.partition(" ")[0].rstrip(":") for text in image.hosts.values())
    return tuple(f"{count} {state}" for state, count in sorted(counts.items()))


IMAGES = Listing(
    "images",
    (
        Column("name", "NAME", lambda image: image.name),
        Column("version", "VERSION", lambda image: image.version),
        Column("os", "OS", lambda image: image.os),
        Column("pools", "POOLS", lambda image: image.pools),
        Column("hosts", "HOSTS", _host_states),
        Column("path", "PATH", lambda image: image.path, level="wide"),
        Column("retired", "RETIRED", lambda image: image.retired, level="wide"),
    ),
    lambda image: str(image.name),
)


def _image_page(data: FleetImageResult) -> Page:
    return pairs_page(
        data, "name", "version", "os", "file", "url", "path", "bytes", "sha256", "retired", "pools", "hosts"
    )  # fmt: skip


def _changed_image(data: Any) -> Page:
    image: FleetImageResult = data.data
    return changed_page(data, f"image {image.name}: {image.path}" if data.changed else f"image {image.name}: unchanged")


@make_command(
    "ensure-image", table=CONTROLLER_COMMANDS, page=_changed_image,
    examples=(
        ("vgpuctl controller ensure-image office --file office-11.qcow2", "the controller sends it to the hosts"),
        (
            "vgpuctl controller ensure-image office --url https://images.example.org/office.qcow2 --sha256 DIGITS",
            "each host fetches it",
        ),
        ("vgpuctl controller ensure-image office --path /srv/shared/office-11.qcow2", "storage that hosts share"),
    ),
)  # fmt: skip
@click.argument("name", metavar="NAME")
@click.option("--file", metavar="FILE", type=click.Path(dir_okay=False), help="A qcow2 or raw image of this machine.")
@click.option("--url", metavar="URL", help="Where each host fetches it: https, below its agent: allow: image_urls.")
@click.option("--path", metavar="PATH", help="Where each host has it already; nobody copies it.")
@click.option("--folder", metavar="FOLDER", help="Of copies on hosts, in their agent: allow: folders. [/srv/images]")
@click.option("--version", "version", metavar="TEXT", default="1", help="For people. [1]")
@click.option("--os", "system", metavar="TEXT", default="linux", help="linux, windows11 or another word. [linux]")
@click.option("--sha256", metavar="DIGITS", help="The file's checksum; needed with --url, computed for --file.")
@click.option("--size", metavar="BYTES", type=int, help="The file's size, if it is known.")
@click.option("--retired", is_flag=True, help="No pool may begin to use it.")
@changes_at_controller
@click.pass_obj
def ensure_image(
    settings: Settings, name: str, file: str | None, url: str | None, path: str | None, folder: str | None,
    version: str, system: str, sha256: str | None, size: int | None, retired: bool, where: Where,
) -> int:  # fmt: skip
    """Add an image: one of --file, --url and --path says where it is. Again: what failed on hosts is tried now.

    Hosts whose desktops need it get a copy, with its checksum checked, and lose it when nothing in the fleet uses it.
    A file is read from this machine, the controller's own, each time that a host gets it: leave it there.
    """
    return make_call(
        settings, where, "ensure-image", name=name, file=None if file is None else os.path.abspath(file), url=url,
        path=path, folder=folder, version=version, os=system, sha256=sha256, size=size, retired=retired,
    )  # fmt: skip


@make_command(
    "show-image", table=CONTROLLER_COMMANDS, page=_image_page,
    examples=(("vgpuctl controller show-image office", "which hosts have it, and why one has not"),),
)  # fmt: skip
@click.argument("name", metavar="IMAGE")
@at_controller
@click.pass_obj
def show_image(settings: Settings, name: str, where: Where) -> int:
    """Show one image, and what each host has of it."""
    return make_call(settings, where, "show-image", name=name)


@make_command(
    "list-images", table=CONTROLLER_COMMANDS, listing=IMAGES,
    examples=(("vgpuctl controller list-images", "and which pools use them"),),
)  # fmt: skip
@at_controller
@click.pass_obj
def list_images(settings: Settings, where: Where) -> int:
    """List the images of the fleet."""
    return make_call(settings, where, "list-images")


@make_command(
    "delete-image", table=CONTROLLER_COMMANDS, page=_changed_image,
    examples=(("vgpuctl controller delete-image office-10", "the hosts' copies go, the file itself stays"),),
)  # fmt: skip
@click.argument("name", metavar="IMAGE")
@changes_at_controller
@click.pass_obj
def delete_image(settings: Settings, name: str, where: Where) -> int:
    """Delete an image that no pool and no desktop uses; hosts delete their copies once no disk there needs them."""
    return make_call(settings, where, "delete-image", name=name)


COMMANDS: dict[str, click.Command] = {
    str(one.name): one for one in (ensure_image, list_images, show_image, delete_image)
}
