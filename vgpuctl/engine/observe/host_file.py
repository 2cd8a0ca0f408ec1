# SPDX-License-Identifier: Apache-2.0
"""What host.yaml says: each GPU's mode and scheduler, whether it is cordoned, and the vGPUs without a VM."""

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


EMPTY = f"{PATH} says nothing and counts as absent: begin it with 'version: 1', or remove it"
_SAID = ("desired", "cordoned", "desired_scheduler")
"""The fields of a `Gpu` that host.yaml says."""

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


class HostFileRead(Value):
    """What host.yaml says of the GPUs and of vGPUs without a VM.

    `problem`: why it cannot be understood; `warnings`: what to tell of it.
    """

    gpus: Mapping[str, GpuSpec] = NOTHING
    named: tuple[NamedVgpu, ...] = ()
    problem: str | None = None
    warnings: tuple[str, ...] = ()

    def desired(self, gpus: tuple[Gpu, ...], known: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
        """Return the GPUs with what is said of each; of those in `known`, with what was said a moment ago."""
        said = {
            a: {"desired": Mode(s.mode) if s.mode else None, "cordoned": s.cordoned, "desired_scheduler": s.scheduler}
            for a, s in self.gpus.items()
        }
        said |= {g.address: {key: getattr(g, key) for key in _SAID} for g in known}
        return tuple(replace(gpu, **said[gpu.address]) if gpu.address in said else gpu for gpu in gpus)


def read_host_file(world: World) -> HostFileRead:
    """Read host.yaml once."""
    try:
        text = _text(world)
        spec = None if text is None else _parsed(text)
    except InvalidInput as error:
        problem = f"{PATH} cannot be used: {error.message}"
        return HostFileRead(problem=problem, warnings=(f"{problem}; {UNUSABLE}",))
    if spec is None:
        return HostFileRead(warnings=() if text is None else (EMPTY,))
    return HostFileRead(spec.gpus, named_vgpus(spec.vgpus))


def named_vgpus(vgpus: Mapping[str, VgpuSpec]) -> tuple[NamedVgpu, ...]:
    """Return `vgpus:` of host.yaml by name."""
    return tuple(
        NamedVgpu(name, said.profile, said.gpu, said.carrier, ",".join(f"{k}={v}" for k, v in said.vgpu_params.items()))
        for name, said in sorted(vgpus.items())
    )
