# SPDX-License-Identifier: Apache-2.0
"""AMD's amd-smi of the virtualisation build, for hosts with GIM: `list --json` and `metric --json`.

Not the amd-smi of ROCm, whose documents are of another form. A quantity is `{"value": 140, "unit": "W"}`, or has the
unit `N/A`. It reports the framebuffer that a guest's driver uses for each VF; what it calls MB is MiB in GIM. Each
VF needs a command of its own, so VFs are left out when the time ends.

Source: amd/MxGPU-Virtualization, commit 695afe2: smi-lib/docs/how_to/amdsmi_cli_tool.md (an output of `list`),
smi-lib/cli/cpp/src/smi_cli_metric_command.cpp and host/smi_cli_api_host_metric.cpp (the form of `metric`).
"""

from __future__ import annotations

from collections.abc import Mapping

from vgpuctl.host.usage.maker_tools.texts import at_path, by_sensor, items, mib_in_bytes, quantity, ratio
from vgpuctl.host.usage.maker_tools.tool import ProgramRuns, ToolReading, UsageTool
from vgpuctl.model.json_yaml import parse_json
from vgpuctl.model.names import normalize_pci
from vgpuctl.model.usage import MAX_VALUE, EngineUse, GpuUse, VgpuUse

_NAME = "amd-smi"
_SECONDS_FOR_A_VF = 2.0
_METRICS = ("--usage", "--power", "--temperature", "--energy", "--ecc")
_ECC = {"corrected": "correctable", "uncorrected": "uncorrectable"}


def parse_list(text: str) -> dict[int, tuple[str, tuple[str, ...]]]:
    """Return each card's number, with its PCI address and those of its VFs."""
    cards: dict[int, tuple[str, tuple[str, ...]]] = {}
    for card in items(parse_json(text)):
        index, address = at_path(card, "gpu"), normalize_pci(str(at_path(card, "bdf")))
        addresses = (normalize_pci(str(at_path(vf, "bdf"))) for vf in items(card, "vfs"))
        if isinstance(index, int) and address is not None:
            cards[index] = (address, tuple(vf for vf in addresses if vf is not None))
    return cards


def parse_metrics(text: str, cards: Mapping[int, tuple[str, tuple[str, ...]]]) -> tuple[GpuUse, ...]:
    """Return the use of each card of `cards`."""
    numbered = [(at_path(row, "gpu"), row) for row in items(parse_json(text))]
    return tuple(_card_use(cards[n][0], row) for n, row in numbered if isinstance(n, int) and n in cards)


def _card_use(address: str, row: object) -> GpuUse:
    ecc = {kind: at_path(row, "ecc", f"total_{key}_count") for kind, key in _ECC.items()}
    return GpuUse(
        address,
        _NAME,
        engines=EngineUse(
            sm=ratio(quantity(row, "usage", "gfx_activity", unit="%")),
            memory=ratio(quantity(row, "usage", "umc_activity", unit="%")),
        ),
        power_watts=quantity(row, "power", "socket_power", unit="W"),
        energy_joules=quantity(row, "energy", "total_energy_consumption", unit="J"),
        temperatures=by_sensor(
            gpu=quantity(row, "temperature", "edge", unit="C"),
            hotspot=quantity(row, "temperature", "hotspot", unit="C"),
            memory=quantity(row, "temperature", "mem", unit="C"),
        ),
        ecc_errors={kind: count for kind, count in ecc.items() if type(count) is int and 0 <= count < MAX_VALUE},
    )


def parse_guest_data(text: str, gpu: str, vf: str) -> VgpuUse:
    """Return what the driver in a VF's guest reports."""
    row = next(iter(items(parse_json(text))), None)
    return VgpuUse(gpu, (vf,), memory_used_bytes=mib_in_bytes(quantity(row, "guest_data", "fb_usage", unit="MB")))


def _read(run: ProgramRuns) -> ToolReading:
    cards = parse_list(run("list", "--json"))
    gpus = parse_metrics(run("metric", *_METRICS, "--json"), cards)
    vgpus: list[VgpuUse] = []
    for vf, address in ((vf, address) for address, vfs in cards.values() for vf in vfs):
        if run.seconds_left < _SECONDS_FOR_A_VF:
            break
        vgpus.append(parse_guest_data(run("metric", f"--vf={vf}", "--guest-data", "--json"), address, vf))
    return ToolReading(gpus, tuple(vgpus))


TOOL = UsageTool(_NAME, ("/usr/bin/amd-smi", "/usr/local/bin/amd-smi"), _read)
