# SPDX-License-Identifier: Apache-2.0
"""Read host.yaml: each GPU's mode and scheduler, whether it is cordoned, and the vGPUs without a VM."""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from vgpuctl.errors import InvalidInput
from vgpuctl.model.gpu import Gpu, GpuMode
from vgpuctl.model.names import is_pci_address
from vgpuctl.model.request import PlacementSpec
from vgpuctl.model.vm import HostVgpu
from vgpuctl.value import EMPTY_MAPPING, Value, replace

if TYPE_CHECKING:
    from vgpuctl.config.host_spec import GpuSpec, HostSpec, VgpuSpec
    from vgpuctl.ports.host import Host

HOST_FILE_PATH = "/etc/vgpuctl/host.yaml"


HOST_FILE_FIELDS = (
    "desired_mode",
    "cordoned",
    "desired_scheduler",
    "desired_mig",
    "desired_mixed_size",
    "desired_compute_partition",
    "desired_memory_partition",
    "desired_vf_memory_mib",
    "allowed_profiles",
    "reserved_for",
    "reason",
)
"""The fields of a `Gpu` that come from host.yaml."""

_NOT_UTF8 = re.compile("[\ufffd\ud800-\udfff]")
"""The characters that the ports return for bytes that are not UTF-8."""
_NOT_REGULAR_FILE = (errno.EISDIR, errno.EINVAL, errno.EFBIG, errno.ELOOP)
"""The file is not regular, or too large: it cannot be replaced until somebody moves it away."""
UNUSABLE_EFFECT = "vgpuctl refuses new vGPUs and changes of GPUs until it is fixed"


def read_host_spec(host: Host) -> HostSpec | None:
    """Return the contents of host.yaml, None if there is no such file.

    Raises:
        InvalidInput: it cannot be read or parsed, or it is empty: an empty file was truncated.
    """
    text = read_host_yaml(host)
    try:
        return None if text is None else _parsed(text)
    except InvalidInput as error:
        error.hint = "; ".join(filter(None, (error.hint, restore_hint(host))))
        raise


@lru_cache(maxsize=1)
def _parsed(text: str) -> HostSpec:
    """Parse a text; cached, because a command observes its host repeatedly and the text is mostly the same."""
    from vgpuctl.config import host_spec

    _require_utf8(text)
    return host_spec.parse_host_spec(text, HOST_FILE_PATH)


def read_host_yaml(host: Host) -> str | None:
    """Return the text of host.yaml, None if there is no such file. Bytes that are not UTF-8 become surrogates.

    Raises:
        InvalidInput: the file cannot be read.
    """
    try:
        return host.host_file.read() if host.host_file is not None else host.sysfs.read(HOST_FILE_PATH)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return None
        command = (
            restore_hint(host, f"mv {HOST_FILE_PATH} {HOST_FILE_PATH}.bad")
            if error.errno in _NOT_REGULAR_FILE
            else f"ls -l {HOST_FILE_PATH}"
        )
        raise InvalidInput(
            f"{HOST_FILE_PATH} cannot be read: {error.strerror or error}",
            hint=f"{command}; a host without its own settings does not need this file",
            errno=error.errno,
            path=HOST_FILE_PATH,
        ) from error


def restore_hint(host: Host, first_command: str | None = None) -> str:
    """Return the command that restores a previous version of host.yaml; if there is none, what else helps.

    `first_command`: the command to run before it, or alone.
    """
    try:
        has_previous = host.host_file is not None and host.host_file.previous_version(1) is not None
    except OSError:
        has_previous = False
    if not has_previous:
        return first_command or f"correct or remove {HOST_FILE_PATH}"
    return (
        f"{f'{first_command}; then ' if first_command else ''}vgpuctl apply --undo goes back to the "
        "newest saved version"
    )


def _require_utf8(text: str) -> None:
    if _NOT_UTF8.search(text):
        raise InvalidInput(
            f"{HOST_FILE_PATH} is not UTF-8 text",
            hint=f"save it as UTF-8, like: iconv -f LATIN1 -t UTF-8 {HOST_FILE_PATH}",
            path=HOST_FILE_PATH,
        )


class HostFileRead(Value):
    """The contents of host.yaml: GPUs, vGPUs without a VM, and the placement of new vGPUs.

    `problem`: why it cannot be used; `hint`: what helps; `warnings`: the warnings about it.
    """

    gpus: Mapping[str, GpuSpec] = EMPTY_MAPPING
    host_vgpus: tuple[HostVgpu, ...] = ()
    placement: PlacementSpec = PlacementSpec()
    problem: str | None = None
    hint: str | None = None
    warnings: tuple[str, ...] = ()

    def add_desired(self, gpus: tuple[Gpu, ...], cached_gpus: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
        """Return the GPUs with their fields from host.yaml; for GPUs in `cached_gpus`, with the fields read before."""
        if not self.gpus and not cached_gpus:
            return gpus
        cached_fields = {g.address: {key: getattr(g, key) for key in HOST_FILE_FIELDS} for g in cached_gpus}
        return tuple(
            replace(gpu, **(cached_fields.get(gpu.address) or _desired_fields(self.gpus, gpu))) for gpu in gpus
        )

    @property
    def addresses(self) -> frozenset[str]:
        """The PCI addresses of GPUs that it names."""
        return frozenset(key for key in (*self.gpus, *(v.gpu for v in self.host_vgpus)) if is_pci_address(key))

    @property
    def uses_models(self) -> bool:
        """Whether GPUs are named by model, so that their models must be read."""
        return any(key != "all" and not is_pci_address(key) for key in self.gpus)


def _desired_fields(gpus: Mapping[str, GpuSpec], gpu: Gpu) -> dict[str, object]:
    from vgpuctl.config import host_spec

    if not gpus:
        return {}
    entry = host_spec.merge_gpu_entries(gpus, gpu)
    return {
        "desired_mode": GpuMode(entry.mode) if entry.mode else None,
        "cordoned": bool(entry.cordoned),
        "desired_scheduler": entry.scheduler,
        "desired_mig": entry.mig,
        "desired_mixed_size": entry.mixed_size,
        "desired_compute_partition": entry.compute_partition,
        "desired_memory_partition": entry.memory_partition,
        "desired_vf_memory_mib": host_spec.vf_memory_mib(entry),
        "allowed_profiles": entry.profiles,
        "reserved_for": entry.reserved_for or (),
        "reason": entry.reason,
    }


def read_host_file(host: Host) -> HostFileRead:
    """Read host.yaml once."""
    try:
        spec = read_host_spec(host)
    except InvalidInput as error:
        problem = f"{HOST_FILE_PATH} cannot be used: {error.message}"
        return HostFileRead(problem=problem, hint=error.hint, warnings=(f"{problem}; {UNUSABLE_EFFECT}: {error.hint}",))
    if spec is None:
        return HostFileRead()
    return HostFileRead(spec.gpus, named_vgpus(spec.vgpus), spec.placement)


def named_vgpus(vgpus: Mapping[str, VgpuSpec]) -> tuple[HostVgpu, ...]:
    """Return the `vgpus:` of host.yaml, sorted by name."""
    return tuple(
        HostVgpu(
            name, entry.profile, entry.gpu, entry.carrier, ",".join(f"{k}={v}" for k, v in entry.vgpu_params.items())
        )
        for name, entry in sorted(vgpus.items())
    )
