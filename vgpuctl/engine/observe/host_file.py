# SPDX-License-Identifier: Apache-2.0
"""What host.yaml says of the GPUs: mode, scheduler, and whether it is cordoned."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from vgpuctl.errors import InvalidInput
from vgpuctl.model.gpu import Gpu, Mode
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.model.world import World
    from vgpuctl.spec.host import HostSpec

PATH = "/etc/vgpuctl/host.yaml"


def read_host_spec(world: World) -> HostSpec | None:
    """Return what host.yaml says, None when there is no such file.

    Raises:
        InvalidInput: it cannot be read or understood.
    """
    text = _text(world)
    return None if text is None else _parsed(text)


def _parsed(text: str) -> HostSpec:
    from vgpuctl.spec.host import parse_host_spec

    return parse_host_spec(text, PATH)


def _text(world: World) -> str | None:
    try:
        return world.sysfs.read(PATH)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return None
        raise InvalidInput(
            f"{PATH} cannot be read: {error.strerror or error}", hint=f"ls -l {PATH}", errno=error.errno, path=PATH
        ) from error


def add_desired(world: World, gpus: tuple[Gpu, ...], known: tuple[Gpu, ...]) -> tuple[tuple[Gpu, ...], str | None]:
    """Return the GPUs with what host.yaml says of each, and why it cannot be understood.

    GPUs in `known` were seen a moment ago, and the file is not read again: this is the look under the host lock. A text
    without the word gpus says nothing of them and is not parsed: importing what does is most of a short command's
    time.
    """
    if known:
        before = {g.address: g for g in known}
        return tuple(
            replace(g, desired=was.desired, cordoned=was.cordoned, desired_scheduler=was.desired_scheduler)
            if (was := before.get(g.address)) is not None
            else g
            for g in gpus
        ), None
    try:
        text = _text(world)
        spec = _parsed(text) if text is not None and "gpus" in text else None
    except InvalidInput as error:
        return gpus, f"what {PATH} says of the GPUs is unknown: {error.message}"
    if spec is None or not spec.gpus:
        return gpus, None
    return tuple(
        replace(
            g,
            desired=Mode(said.mode) if said.mode else None,
            cordoned=said.cordoned,
            desired_scheduler=said.scheduler,
        )
        if (said := spec.gpus.get(g.address)) is not None
        else g
        for g in gpus
    ), None
