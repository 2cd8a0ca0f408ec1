# SPDX-License-Identifier: Apache-2.0
"""The World that --host, --root and --connect name: this host's seams, or a simulated host's."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING

from vgpuctl.cli.settings import DEFAULT_HOST, Settings
from vgpuctl.errors import InvalidInput

if TYPE_CHECKING:
    from vgpuctl.model.world import World

_LOCAL_URI = re.compile(r"[a-z][a-z0-9]*(\+unix)?:///.*", re.ASCII)


def open_world(settings: Settings) -> World:
    """Return the host that the global options name.

    Raises:
        InvalidInput: no such host, or options that contradict each other.
    """
    if settings.afar:
        raise InvalidInput("this looks at hosts of this machine alone", hint="leave --host ssh:// and --hosts out")
    if settings.host.startswith("sim:"):
        from vgpuctl.cli.simulated import open_simulated

        return open_simulated(settings)
    if settings.host != DEFAULT_HOST:
        raise InvalidInput(
            f"--host {settings.host}: there is no such host",
            hint=f"say local, ssh://HOST or {_as_sim(settings.host)}; 'vgpuctl sim list-scenarios' lists the latter",
        )
    _check_connect(settings.connect)
    from vgpuctl.host.world import local_world

    return local_world(root=os.path.abspath(settings.root), connect=settings.connect)


def open_world_to_change(settings: Settings) -> World:
    """Return the host for a command that changes it.

    Raises:
        InvalidInput: it is a captured tree, which can only be read.
    """
    if settings.host == DEFAULT_HOST and os.path.abspath(settings.root) != "/":
        raise InvalidInput(
            f"--root {settings.root}: a command that changes the host works on / only",
            hint="leave --root out, or try it on a simulated host: --host sim:a100-40",
        )
    return open_world(settings)


def _check_connect(uri: str | None) -> None:
    if uri is not None and not _LOCAL_URI.fullmatch(uri):
        raise InvalidInput(
            f"--connect {uri}: only a libvirt on this host can be used",
            hint="say qemu:///system; another host is --host ssh://HOST",
        )


def _as_sim(text: str) -> str:
    """Return what was meant by a host without `sim:` in front."""
    with suppress(Exception):
        from vgpuctl.cli.simulated import scenarios

        return next(f"sim:{name}" for name, _ in scenarios() if name == text)
    return "sim:NAME"
