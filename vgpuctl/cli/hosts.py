# SPDX-License-Identifier: Apache-2.0
"""The Host that --host, --root and --connect name: this host's ports, or a simulated host's."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING

from vgpuctl.cli.settings import DEFAULT_HOST, Settings
from vgpuctl.errors import InvalidInput

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host

_LOCAL_URI = re.compile(r"[a-z][a-z0-9]*(\+unix)?:///.*", re.ASCII)


def open_host(settings: Settings) -> Host:
    """Return the host that the global options name.

    Raises:
        InvalidInput: there is no such host, or the options contradict each other.
    """
    if settings.is_remote:
        raise InvalidInput("this looks at hosts of this machine alone", hint="leave --host ssh:// and --hosts out")
    if settings.host.startswith("sim:"):
        from vgpuctl.cli.simulated_host import open_selected_host

        return open_selected_host(settings)
    if settings.host != DEFAULT_HOST:
        raise InvalidInput(
            f"--host {settings.host}: there is no such host",
            hint=f"say local, ssh://HOST or {_suggest_simulated(settings.host)}; 'vgpuctl sim list-scenarios' "
            "lists the latter",
        )
    _check_connect(settings.connect)
    from vgpuctl.host.local_host import open_local_host

    return open_local_host(root=os.path.abspath(settings.root), connect=settings.connect)


def open_host_to_change(settings: Settings) -> Host:
    """Return the host for a command that changes it.

    Raises:
        InvalidInput: --root names a captured tree, which is read-only.
    """
    if settings.host == DEFAULT_HOST and os.path.abspath(settings.root) != "/":
        raise InvalidInput(
            f"--root {settings.root}: a command that changes the host works on / only",
            hint="leave --root out, or try it on a simulated host: --host sim:a100-40",
        )
    return open_host(settings)


def _check_connect(uri: str | None) -> None:
    if uri is not None and not _LOCAL_URI.fullmatch(uri):
        raise InvalidInput(
            f"--connect {uri}: only a libvirt on this host can be used",
            hint="say qemu:///system; another host is --host ssh://HOST",
        )


def _suggest_simulated(text: str) -> str:
    """Return the simulated host that was probably meant by a name without `sim:`."""
    with suppress(Exception):
        from vgpuctl.cli.simulated_host import list_scenarios

        return next(f"sim:{name}" for name, _ in list_scenarios() if name == text)
    return "sim:NAME"
