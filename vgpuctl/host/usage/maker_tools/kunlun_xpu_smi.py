# SPDX-License-Identifier: Apache-2.0
"""Kunlun: `xpu-smi -q`, a listing with a block for each card. Intel has another program of this name.

Source: an output of xpu-smi with driver 5.0.21 for P800 in zstackio/zstack-utility (zstacklib/zstacklib/utils/gpu.py);
the table of `xpu-smi` in PaddlePaddle's guides agrees with it.
"""

from __future__ import annotations

import re

from vgpuctl.host.usage.maker_tools.texts import amount, by_sensor, mib_in_bytes, ratio, read_blocks, word
from vgpuctl.host.usage.maker_tools.tool import ProgramRuns, ToolReading, UsageTool
from vgpuctl.model.names import normalize_pci
from vgpuctl.model.usage import EngineUse, GpuUse

_NAME = "kunlun-xpu-smi"
_CARD = re.compile(r"XPU ([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])", re.ASCII)


def parse(text: str) -> tuple[GpuUse, ...]:
    """Return the use of each card."""
    uses: list[GpuUse] = []
    for card, values in read_blocks(text, _CARD):
        address = normalize_pci(card)
        if address is None:
            continue
        uses.append(
            GpuUse(
                address,
                _NAME,
                uuid=word(values.get(("", "XPU UUID"))),
                serial=word(values.get(("", "Serial Number"))),
                memory_size_bytes=mib_in_bytes(amount(values.get(("Memory Usage", "Total")), "MiB")),
                memory_used_bytes=mib_in_bytes(amount(values.get(("Memory Usage", "Used")), "MiB")),
                memory_reserved_bytes=mib_in_bytes(amount(values.get(("Memory Usage", "Reserved")), "MiB")),
                engines=EngineUse(sm=ratio(amount(values.get(("Utilization", "Xpu")), "%"))),
                power_watts=amount(values.get(("Power Readings", "Power Draw")), "W"),
                power_limit_watts=amount(values.get(("Power Readings", "Enforced Power Limit")), "W"),
                temperatures=by_sensor(gpu=amount(values.get(("Temperature", "XPU Current Temp")), "C")),
            )
        )
    return tuple(uses)


def _read(run: ProgramRuns) -> ToolReading:
    return ToolReading(parse(run("-q")))


TOOL = UsageTool(_NAME, ("/usr/local/bin/xpu-smi", "/usr/bin/xpu-smi"), _read)
