# SPDX-License-Identifier: Apache-2.0
"""Plan the VFs and partition modes of GPUs with AMD's driver gim, which concern all its GPUs at once.

gim is loaded again for another number of VFs, and changes the partition modes of a whole XGMI hive: the VMs on VFs of
any of its GPUs are off meanwhile. The number of each other GPU stays as it is now.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from vgpuctl.errors import HostCannot, InvalidInput, Refused
from vgpuctl.gpu_setup.gim_vfs import SetGimVfs, SetPartitionMode, unknown_gpus_error
from vgpuctl.makers import gim, maker_of, sets_vfs_at_load
from vgpuctl.model.gpu import Gpu, GpuMode
from vgpuctl.model.numbers import count_text
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.observe.gim import GimSettings
from vgpuctl.operations.plans.evict import Eviction
from vgpuctl.operations.plans.layout import refuse_running_vms, vms_to_drain
from vgpuctl.ports.step import Step
from vgpuctl.value import Value

Modes = tuple[str, str]


class GimRequest(Value):
    """The requested number of VFs and modes of a GPU, None for those that it has or gets by itself.

    `drain`: running VMs may be stopped. `after_boot`: gim has just read its file, so nothing is loaded again.
    """

    vf_count: int
    compute: str | None = None
    memory: str | None = None
    drain: bool = False
    after_boot: bool = False

    @property
    def names_mode(self) -> bool:
        """Whether a mode is requested."""
        return self.compute is not None or self.memory is not None


def other_gpus(snapshot: Snapshot, gpu: Gpu) -> tuple[Gpu, ...]:
    """Return the other GPUs of the same driver, if that sets all of them at once."""
    if not sets_vfs_at_load(gpu):
        return ()
    return tuple(g for g in snapshot.gpus if g.address != gpu.address and sets_vfs_at_load(g))


def target_modes(gpu: Gpu, request: GimRequest) -> Modes | None:
    """Return the compute and memory modes of a GPU with this number of VFs; None for a GPU without such modes.

    Raises:
        HostCannot: it has no such modes.
        InvalidInput: this number of VFs does not go with these modes.
    """
    choices = maker_of(gpu).partition_choices(gpu.device_id) if sets_vfs_at_load(gpu) else {}
    if not choices:
        if request.names_mode:
            raise HostCannot(
                f"{gpu.address} ({gpu.model}) has no partition modes: driver {gpu.driver or 'none'}",
                hint="AMD's MI300 and later GPUs have them, with the driver gim",
                check="partition",
                gpu=gpu.address,
            )
        return None
    pairs = choices.get(request.vf_count, ())
    matching = [p for p in pairs if request.compute in (None, p[0]) and request.memory in (None, p[1])]
    if not matching:
        wanted = "".join(f" {mode}" for mode in (request.compute, request.memory) if mode is not None)
        raise InvalidInput(
            f"{gpu.address} ({gpu.model}) cannot have {count_text(request.vf_count, 'VF')}"
            f"{f' with{wanted}' if wanted else ''}",
            hint=f"possible: {_describe_choices(choices)}",
            gpu=gpu.address,
            vfs=request.vf_count,
        )
    current = (gpu.compute_partition, gpu.memory_partition)
    keeps = request.vf_count == gpu.vfs_enabled and (
        not request.names_mode or (request.memory is None and (request.compute, current[1]) in matching)
    )
    if keeps and not request.names_mode and None not in current:
        return (str(current[0]), str(current[1]))
    if keeps and request.names_mode:
        return (str(request.compute), str(current[1]))
    return matching[0]


def _describe_choices(choices: Mapping[int, tuple[Modes, ...]]) -> str:
    """Return the possible numbers of VFs with their modes: `--vfs 1 (SPX/NPS1, CPX/NPS4), --vfs 8 (CPX/NPS1)`."""
    parts = (f"--vfs {n} ({', '.join('/'.join(pair) for pair in pairs)})" for n, pairs in choices.items())
    return ", ".join(parts)


def plan_gim(
    snapshot: Snapshot,
    gpu: Gpu,
    request: GimRequest,
    read_settings: Callable[[], GimSettings],
    takes_new_vfs: Callable[[Gpu], bool],
) -> Eviction:
    """Return the VMs to stop and the steps; nothing where the GPU is as requested.

    `read_settings`: reads what gim is loaded with; `takes_new_vfs`: whether host drivers take new VFs of a GPU.

    Raises:
        HostCannot: another setting wins over gim's file, that is not usable, or a GPU of gim was not read.
        InUse: VMs use VFs of the driver's GPUs.
        InvalidInput: as `target_modes`.
        Refused: host.yaml excludes one of them.
    """
    modes = target_modes(gpu, request)
    loads = request.vf_count != gpu.vfs_enabled
    current = (gpu.compute_partition, gpu.memory_partition)
    sets_modes = modes is not None and request.names_mode and (loads or modes != current)
    if not loads and not sets_modes:
        return Eviction()
    if request.after_boot:
        raise _not_as_loaded_error(gpu, request, modes)
    others = other_gpus(snapshot, gpu)
    settings = read_settings()
    unknown = [address for address in settings.bound if address not in {g.address for g in (gpu, *others)}]
    if unknown:
        raise unknown_gpus_error(gpu.address, unknown, snapshot.unread_texts)
    _refuse_unmanaged(gpu, others)
    if sets_modes:
        _refuse_other_counts(gpu, others, request)
    drained = (vms_to_drain(snapshot, g, _count(g, gpu, request), recreates_vfs=True) for g in (gpu, *others))
    vms = tuple(sorted({vm.uuid: vm for some in drained for vm in some}.values(), key=lambda vm: vm.name))
    if not request.drain:
        what = "gim is loaded again" if loads else "gim changes the modes of all its GPUs"
        refuse_running_vms(gpu, vms, f"{what} with no VM on any of its VFs")
    steps: list[Step] = []
    if loads:
        steps.append(_load_step((gpu, *others), gpu, request, modes, settings, takes_new_vfs))
    if sets_modes and modes is not None:
        for kind, index in (("memory", 1), ("compute", 0)):
            if loads or modes != current:
                steps.append(SetPartitionMode(gpu.address, kind, modes[index], None if loads else current[index]))
    return Eviction(vms, tuple(steps))


def _refuse_unmanaged(gpu: Gpu, others: Iterable[Gpu]) -> None:
    """Refuse to load the driver of a GPU again that host.yaml excludes from vgpuctl.

    Raises:
        Refused: naming it.
    """
    for other in others:
        if other.desired_mode is GpuMode.UNMANAGED:
            raise Refused(
                f"gim sets {gpu.address} and {other.address} at once, and host.yaml excludes {other.address} from "
                "vgpuctl (mode: unmanaged)",
                hint=f"if vgpuctl may set it: vgpuctl set-mode {other.address} sriov --vfs {other.vfs_enabled or 1}",
                gpu=gpu.address,
                other=other.address,
            )


def _count(gpu: Gpu, changed: Gpu, request: GimRequest) -> int:
    return request.vf_count if gpu.address == changed.address else gpu.vfs_enabled


def _load_step(
    gpus: tuple[Gpu, ...],
    gpu: Gpu,
    request: GimRequest,
    modes: Modes | None,
    settings: GimSettings,
    takes_new_vfs: Callable[[Gpu], bool],
) -> SetGimVfs:
    """Return the step that loads gim with its file written for all its GPUs.

    Raises:
        HostCannot: gim would not use the file.
    """
    _refuse_unusable(gpu, settings)
    by_address = {g.address: g for g in gpus}
    order = gim.order_gpus(((g.address, g.device_id or "") for g in gpus), settings.enabled_devices)
    if gpu.address not in order:
        raise HostCannot(
            f"gim leaves {gpu.address} out: its parameter enabled_devices is {settings.enabled_devices}",
            hint=f"grep -rn enabled_devices /etc/modprobe.d; add {gpu.address} there, then boot the host",
            check="gim-settings",
            gpu=gpu.address,
        )
    counts = tuple((address, _count(by_address[address], gpu, request)) for address in order)
    numbers = tuple(count or settings.config.vf_count(place) for place, (_, count) in enumerate(counts))
    written = modes if request.names_mode else None
    choices = maker_of(gpu).partition_choices(gpu.device_id)
    compute, memory = (0, 0) if written is None else _numbers(written, max(choices))
    try:
        text = gim.render_config(gim.GimConfig(numbers, compute, memory))
    except ValueError as error:
        raise HostCannot(
            f"gim would not use {gim.CONFIG_PATH} for {len(order)} GPUs: {error}",
            hint=f"cat {gim.CONFIG_PATH}",
            check="gim-settings",
            gpu=gpu.address,
        ) from error
    return SetGimVfs(
        gpu=gpu.address,
        counts=counts,
        previous_counts=tuple((address, by_address[address].vfs_enabled) for address in order),
        text=text,
        previous_text=settings.text,
        autoprobe=tuple(address for address in order if takes_new_vfs(by_address[address])),
        drops_modes=written is None and any(_has_chosen_modes(g) for g in gpus),
    )


def _has_chosen_modes(gpu: Gpu) -> bool:
    """Return whether a GPU has other partition modes than gim sets by itself."""
    choices = maker_of(gpu).partition_choices(gpu.device_id).get(gpu.vfs_enabled, ())
    return (gpu.compute_partition, gpu.memory_partition) in choices[1:]


def _numbers(modes: Modes, dies: int) -> tuple[int, int]:
    """Return the numbers that gim saves for a pair of modes; CPX is one partition for each compute die."""
    return (dies if modes[0] == "CPX" else gim.COMPUTE_MODES[modes[0]], gim.MEMORY_MODES[modes[1]])


def _refuse_unusable(gpu: Gpu, settings: GimSettings) -> None:
    if settings.vf_options:
        raise HostCannot(
            f"{gim.CONFIG_PATH} has no effect: the parameter vf_num of gim wins over it; {settings.vf_options[0]}",
            hint=f"{gim.removal_hint(settings.vf_options[0])}; then run this command again",
            check="gim-settings",
            gpu=gpu.address,
            settings=list(settings.vf_options),
        )
    if settings.problem is not None:
        raise HostCannot(
            f"gim may empty {gim.CONFIG_PATH} when it is loaded: {settings.problem}",
            hint=f"mv {gim.CONFIG_PATH} {gim.CONFIG_PATH}.bad; then run this command again",
            check="gim-settings",
            gpu=gpu.address,
        )


def _refuse_other_counts(gpu: Gpu, others: tuple[Gpu, ...], request: GimRequest) -> None:
    """Refuse modes while another GPU has another number of VFs: gim sets one mode for all, by a number of its list."""
    different = [g for g in others if g.vfs_enabled != request.vf_count and maker_of(g).partition_choices(g.device_id)]
    if different:
        first = different[0]
        raise InvalidInput(
            f"gim sets the partition modes of all its GPUs together, and {first.address} has "
            f"{count_text(first.vfs_enabled, 'VF')}, not {request.vf_count}",
            hint=f"vgpuctl set-mode {first.address} sriov --vfs {request.vf_count}; then run this command again",
            gpu=gpu.address,
            others=[g.address for g in different],
        )


def _not_as_loaded_error(gpu: Gpu, request: GimRequest, modes: Modes | None) -> HostCannot:
    wanted, options = count_text(request.vf_count, "VF"), f" --vfs {request.vf_count}"
    current = count_text(gpu.vfs_enabled, "VF")
    if request.names_mode and modes is not None:
        wanted = f"{wanted} with {modes[0]}/{modes[1]}"
        current = f"{current} with {gpu.compute_partition}/{gpu.memory_partition}"
        options += f" --compute-partition {modes[0]} --memory-partition {modes[1]}"
    return HostCannot(
        f"gim was loaded with {current} for {gpu.address}, and host.yaml has {wanted}",
        hint=f"vgpuctl set-mode {gpu.address} sriov{options} --drain loads gim again; cat {gim.CONFIG_PATH}",
        check="gim-settings",
        gpu=gpu.address,
    )
