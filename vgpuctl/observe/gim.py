# SPDX-License-Identifier: Apache-2.0
"""Read what AMD's driver gim is set to: partition modes of its GPUs, and the settings that it is loaded with.

Each file is read by its name: another one in the same directory, reset_gpu, resets the card when it is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.errors import HostCannot
from vgpuctl.makers import gim, maker_of, sets_vfs_at_load
from vgpuctl.model.gpu import Gpu
from vgpuctl.model.names import is_pci_address
from vgpuctl.observe.nvml_facts import read_modprobe
from vgpuctl.value import Value, replace

if TYPE_CHECKING:
    from vgpuctl.ports.devices import Sysfs
    from vgpuctl.ports.host import Host


class GimSettings(Value):
    """What gim reads when it is loaded. `text`: its file, None for no file; `problem`: why gim would not use that.

    `vf_options`: where the module's parameter vf_num is set, which wins over the file. `enabled_devices`: the GPUs
    that the parameter of this name limits it to, "" for all. `bound`: the PCI functions that it drives.
    """

    text: str | None
    config: gim.GimConfig
    problem: str | None
    vf_options: tuple[str, ...]
    enabled_devices: str
    bound: tuple[str, ...] = ()


def add_partition_modes(sysfs: Sysfs, gpu: Gpu, entries: frozenset[str]) -> Gpu:
    """Return the GPU with its partition modes; no file is read where the GPU or its driver has none."""
    if not (sets_vfs_at_load(gpu) and maker_of(gpu).partition_choices(gpu.device_id)):
        return gpu
    texts = {
        name: _read(sysfs, f"{gpu.path}/{name}") for name in (gim.COMPUTE_FILE, gim.MEMORY_FILE) if name in entries
    }
    return replace(
        gpu,
        compute_partition=gim.parse_compute_mode(texts.get(gim.COMPUTE_FILE, "")),
        memory_partition=gim.parse_memory_mode(texts.get(gim.MEMORY_FILE, "")),
    )


def list_bound(host: Host) -> tuple[str, ...]:
    """Return every PCI function that gim drives, also one that cannot be read; none where gim is not loaded.

    Raises:
        HostCannot: that cannot be determined.
    """
    try:
        names = host.sysfs.listdir(gim.DRIVER)
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise HostCannot(
            f"the GPUs of gim cannot be listed: {error.strerror or error}",
            hint=f"ls -l {gim.DRIVER}",
            check="gim-settings",
            path=gim.DRIVER,
        ) from error
    return tuple(name for name in names if is_pci_address(name))


def read_gim_settings(host: Host) -> GimSettings:
    """Return what gim would be loaded with now.

    Raises:
        HostCannot: its file, or the list of its GPUs, cannot be read.
        Failed: a file of modprobe cannot be read.
    """
    try:
        text: str | None = host.sysfs.read(gim.CONFIG_PATH)
    except FileNotFoundError:
        text = None
    except OSError as error:
        raise HostCannot(
            f"{gim.CONFIG_PATH} cannot be read: {error.strerror or error}",
            hint=f"ls -l {gim.CONFIG_PATH}",
            check="gim-settings",
            path=gim.CONFIG_PATH,
        ) from error
    config, problem = gim.GimConfig(), None
    try:
        config = gim.parse_config(text or "")
    except ValueError as error:
        problem = str(error)
    files = tuple((file.path, file.text) for file in read_modprobe(host))
    options = gim.find_vf_options(files, _read(host.sysfs, "/proc/cmdline"))
    enabled = _read(host.sysfs, f"{gim.PARAMETERS}/enabled_devices").strip()
    return GimSettings(text, config, problem, options, "" if enabled == "(null)" else enabled, list_bound(host))


def _read(sysfs: Sysfs, path: str) -> str:
    try:
        return sysfs.read(path)
    except OSError:
        return ""
