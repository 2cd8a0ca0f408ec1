# SPDX-License-Identifier: Apache-2.0
"""What host.yaml says: each GPU's mode and scheduler, whether it is cordoned, and the vGPUs without a VM."""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from vgpuctl.errors import InvalidInput
from vgpuctl.model.address import is_pci
from vgpuctl.model.gpu import Gpu, Mode
from vgpuctl.model.vm import NamedVgpu
from vgpuctl.model.wish import PlacementSpec
from vgpuctl.value import NOTHING, Value, replace

if TYPE_CHECKING:
    from vgpuctl.model.world import World
    from vgpuctl.spec.host import GpuSpec, HostSpec, VgpuSpec

PATH = "/etc/vgpuctl/host.yaml"


SAID = (
    "desired",
    "cordoned",
    "desired_scheduler",
    "desired_mig",
    "desired_mixed_size",
    "allowed_profiles",
    "reserved_for",
)
"""The fields of a `Gpu` that host.yaml says."""

_NO_TEXT = re.compile("[\ufffd\ud800-\udfff]")
"""What the seams read for bytes that are no UTF-8."""
_NO_FILE = (errno.EISDIR, errno.EINVAL, errno.EFBIG, errno.ELOOP)
"""Not a regular file, or too large: nothing takes its place before somebody moved it away."""
UNUSABLE = "new vGPUs and changes of GPUs are refused until it is fixed"


def read_host_spec(world: World) -> HostSpec | None:
    """Return what host.yaml says, None when there is no such file.

    Raises:
        InvalidInput: it cannot be read or understood; also one in which nothing stands: it was cut short.
    """
    text = read_text(world)
    try:
        return None if text is None else _parsed(text)
    except InvalidInput as error:
        error.hint = "; ".join(filter(None, (error.hint, way_back(world))))
        raise


@lru_cache(maxsize=1)
def _parsed(text: str) -> HostSpec:
    """Return what a text says. A command looks at its host again and again, and the text is mostly the same."""
    from vgpuctl.spec.host import parse_host_spec

    _require_utf8(text)
    return parse_host_spec(text, PATH)


def read_text(world: World) -> str | None:
    """Return host.yaml's text, None when there is no such file. Bytes that are no text are in it as surrogates.

    Raises:
        InvalidInput: it cannot be read.
    """
    try:
        return world.host_file.read() if world.host_file is not None else world.sysfs.read(PATH)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return None
        look = way_back(world, f"mv {PATH} {PATH}.bad") if error.errno in _NO_FILE else f"ls -l {PATH}"
        raise InvalidInput(
            f"{PATH} cannot be read: {error.strerror or error}",
            hint=f"{look}; a host without settings of its own needs no such file",
            errno=error.errno,
            path=PATH,
        ) from error


def way_back(world: World, first: str | None = None) -> str:
    """Return the command that brings a version before of host.yaml back; when none is kept, what else helps.

    `first`: the command that is to be run before it, or alone.
    """
    try:
        kept = world.host_file is not None and world.host_file.kept(1) is not None
    except OSError:
        kept = False
    if not kept:
        return first or f"correct it, or remove it: {PATH}"
    return f"{f'{first}; then ' if first else ''}vgpuctl apply --undo goes back to the newest version that is kept"


def _require_utf8(text: str) -> None:
    if _NO_TEXT.search(text):
        raise InvalidInput(
            f"{PATH} is not UTF-8 text", hint=f"save it as UTF-8, like: iconv -f LATIN1 -t UTF-8 {PATH}", path=PATH
        )


class HostFileRead(Value):
    """What host.yaml says of the GPUs, of vGPUs without a VM and of where new ones are placed.

    `problem`: why it cannot be understood, and `hint` what helps; `warnings`: what to tell of it.
    """

    gpus: Mapping[str, GpuSpec] = NOTHING
    named: tuple[NamedVgpu, ...] = ()
    placement: PlacementSpec = PlacementSpec()
    problem: str | None = None
    hint: str | None = None
    warnings: tuple[str, ...] = ()

    def desired(self, gpus: tuple[Gpu, ...], known: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
        """Return the GPUs with what is said of each; of those in `known`, with what was said a moment ago."""
        if not self.gpus and not known:
            return gpus
        before = {g.address: {key: getattr(g, key) for key in SAID} for g in known}
        return tuple(replace(gpu, **(before.get(gpu.address) or _said(self.gpus, gpu))) for gpu in gpus)

    @property
    def by_model(self) -> bool:
        """Whether GPUs are named by model, so that their models must be read."""
        return any(key != "all" and not is_pci(key) for key in self.gpus)


def _said(gpus: Mapping[str, GpuSpec], gpu: Gpu) -> dict[str, object]:
    if not gpus:
        return {}
    from vgpuctl.spec.gpus import said_of_gpu

    said = said_of_gpu(gpus, gpu)
    return {
        "desired": Mode(said.mode) if said.mode else None,
        "cordoned": bool(said.cordoned),
        "desired_scheduler": said.scheduler,
        "desired_mig": said.mig,
        "desired_mixed_size": said.mixed_size,
        "allowed_profiles": said.profiles,
        "reserved_for": said.reserved_for or (),
    }


def read_host_file(world: World) -> HostFileRead:
    """Read host.yaml once."""
    try:
        spec = read_host_spec(world)
    except InvalidInput as error:
        problem = f"{PATH} cannot be used: {error.message}"
        return HostFileRead(problem=problem, hint=error.hint, warnings=(f"{problem}; {UNUSABLE}: {error.hint}",))
    return HostFileRead() if spec is None else HostFileRead(spec.gpus, named_vgpus(spec.vgpus), spec.placement)


def named_vgpus(vgpus: Mapping[str, VgpuSpec]) -> tuple[NamedVgpu, ...]:
    """Return `vgpus:` of host.yaml by name."""
    return tuple(
        NamedVgpu(name, said.profile, said.gpu, said.carrier, ",".join(f"{k}={v}" for k, v in said.vgpu_params.items()))
        for name, said in sorted(vgpus.items())
    )
