# SPDX-License-Identifier: Apache-2.0
"""Intel's xpu-smi, for data centre cards: `discovery -j` lists the cards, `stats -d ADDRESS -j` tells the use of each.

Values of a whole card only: of one with several tiles some are told per tile, and stay unknown here. Memory is in MiB.

Source: intel/xpumanager (cli, `stats` takes a device's PCI address; documents of version 1.2) and an output of `stats
-j` for Flex 170 in a comment of Intel's open-source samples.
"""

from __future__ import annotations

from vgpuctl.host.usage.maker_tools.texts import at_path, by_sensor, items, mib_in_bytes, number, ratio
from vgpuctl.host.usage.maker_tools.tool import ProgramRuns, ToolReading, UsageTool
from vgpuctl.model.json_yaml import parse_json
from vgpuctl.model.names import normalize_pci
from vgpuctl.model.usage import EngineUse, GpuUse

_NAME = "intel-xpu-smi"


def parse_discovery(text: str) -> tuple[str, ...]:
    """Return the PCI addresses of the cards, without their VFs."""
    devices = items(parse_json(text), "device_list")
    whole = [device for device in devices if at_path(device, "device_function_type") in ("physical", None)]
    addresses = (normalize_pci(str(at_path(device, "pci_bdf_address"))) for device in whole)
    return tuple(address for address in addresses if address is not None)


def parse_stats(text: str, address: str) -> GpuUse:
    """Return the use of one card."""
    values: dict[str, float | None] = {}
    for row in items(parse_json(text), "device_level"):
        kind = at_path(row, "metrics_type")
        values[str(kind).removeprefix("XPUM_STATS_")] = number(at_path(row, "value"))
    megahertz = values.get("GPU_FREQUENCY")
    return GpuUse(
        address,
        _NAME,
        memory_used_bytes=mib_in_bytes(values.get("MEMORY_USED")),
        engines=EngineUse(sm=ratio(values.get("GPU_UTILIZATION"))),
        power_watts=values.get("POWER"),
        temperatures=by_sensor(gpu=values.get("GPU_CORE_TEMPERATURE"), memory=values.get("MEMORY_TEMPERATURE")),
        clocks={} if megahertz is None else {"graphics": megahertz * 1e6},
    )


def _read(run: ProgramRuns) -> ToolReading:
    addresses = parse_discovery(run("discovery", "-j"))
    return ToolReading(tuple(parse_stats(run("stats", "-d", address, "-j"), address) for address in addresses))


TOOL = UsageTool(_NAME, ("/usr/bin/xpu-smi",), _read)
