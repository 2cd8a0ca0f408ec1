# SPDX-License-Identifier: Apache-2.0
"""What host.yaml says: the mode each GPU is kept for, whether it is cordoned, and the vGPUs without a VM."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import TYPE_CHECKING

from vgpuctl.errors import InvalidInput
from vgpuctl.model.gpu import Gpu, Mode
from vgpuctl.model.vm import NamedVgpu
from vgpuctl.value import NOTHING, Value, replace

if TYPE_CHECKING:
    from vgpuctl.model.world import World
    from vgpuctl.spec.host import GpuSpec, HostSpec, VgpuSpec

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


class HostFileRead(Value):
    """What host.yaml says of the GPUs and of vGPUs without a VM; `problem`: why it cannot be understood."""

    gpus: Mapping[str, GpuSpec] = NOTHING
    named: tuple[NamedVgpu, ...] = ()
    problem: str | None = None

    def desired(self, gpus: tuple[Gpu, ...], known: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
        """Return the GPUs with what is said of each; of those in `known`, with what was said a moment ago."""
        before = {g.address: (g.desired, g.cordoned) for g in known}
        said = {a: (Mode(s.mode) if s.mode else None, s.cordoned) for a, s in self.gpus.items()} | before
        pairs = ((gpu, said.get(gpu.address)) for gpu in gpus)
        return tuple(replace(gpu, desired=one[0], cordoned=one[1]) if one else gpu for gpu, one in pairs)


def read_host_file(world: World) -> HostFileRead:
    """Read host.yaml once. A text without the word gpus, which is in vgpus too, says nothing of them: it is not parsed.

    Importing what parses it is most of a short command's time.
    """
    try:
        text = _text(world)
        spec = _parsed(text) if text is not None and "gpus" in text else None
    except InvalidInput as error:
        return HostFileRead(problem=f"what {PATH} says of the GPUs is unknown: {error.message}")
    return HostFileRead() if spec is None else HostFileRead(spec.gpus, named_vgpus(spec.vgpus))


def named_vgpus(vgpus: Mapping[str, VgpuSpec]) -> tuple[NamedVgpu, ...]:
    """Return `vgpus:` of host.yaml by name."""
    return tuple(
        NamedVgpu(name, said.profile, said.gpu, said.carrier, ",".join(f"{k}={v}" for k, v in said.vgpu_params.items()))
        for name, said in sorted(vgpus.items())
    )
