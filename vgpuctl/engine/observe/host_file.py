# SPDX-License-Identifier: Apache-2.0
"""What host.yaml says of the GPUs: the mode each is kept for, and whether it is cordoned."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from vgpuctl.errors import InvalidInput
from vgpuctl.model.gpu import Gpu, Mode
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.engine.observe import Want
    from vgpuctl.model.world import World
    from vgpuctl.spec.host import GpuSpec, HostSpec

PATH = "/etc/vgpuctl/host.yaml"


EMPTY = f"{PATH} says nothing and counts as absent: begin it with 'version: 1', or remove it"
UNUSABLE = "new vGPUs and changes of GPUs are refused until it is mended"


def read_host_spec(world: World) -> HostSpec | None:
    """Return what host.yaml says, None when there is no such file or nothing stands in it.

    Raises:
        InvalidInput: it cannot be read or understood.
    """
    text = _text(world)
    return None if text is None else _parsed(text)


def _parsed(text: str) -> HostSpec | None:
    from vgpuctl.spec.host import parse_host_spec, says_nothing

    return None if says_nothing(text) else parse_host_spec(text, PATH)


def _text(world: World) -> str | None:
    try:
        text = world.sysfs.read(PATH)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return None
        raise InvalidInput(
            f"{PATH} cannot be read: {error.strerror or error}",
            hint=f"ls -l {PATH}; a host without settings of its own needs no such file",
            errno=error.errno,
            path=PATH,
        ) from error
    if "\ufffd" in text:  # what the seam reads for bytes that are none
        raise InvalidInput(
            f"{PATH} is not UTF-8 text", hint=f"save it as UTF-8, like: iconv -f LATIN1 -t UTF-8 {PATH}", path=PATH
        )
    return text


def add_desired(world: World, gpus: tuple[Gpu, ...], want: Want) -> tuple[tuple[Gpu, ...], str | None, tuple[str, ...]]:
    """Return the GPUs with what host.yaml says of each, why it cannot be understood, and what to warn of.

    GPUs that `want` knows were seen a moment ago, and the file is not read again: this is the look under the host lock.
    """
    if not want.desired:
        return gpus, None, ()
    if want.known:
        before = {g.address: g for g in want.known}
        seen = (
            replace(g, desired=before[g.address].desired, cordoned=before[g.address].cordoned)
            if g.address in before
            else g
            for g in gpus
        )
        return tuple(seen), None, ()
    try:
        text = _text(world)
        spec = None if text is None else _parsed(text)
    except InvalidInput as error:
        problem = f"{PATH} cannot be used: {error.message}"
        return gpus, problem, (f"{problem}; {UNUSABLE}",)
    if spec is None:
        return gpus, None, () if text is None else (EMPTY,)
    said = spec.gpus
    return tuple(_with_desired(g, said[g.address]) if g.address in said else g for g in gpus), None, ()


def _with_desired(gpu: Gpu, said: GpuSpec) -> Gpu:
    return replace(gpu, desired=Mode(said.mode) if said.mode else None, cordoned=said.cordoned)
