# SPDX-License-Identifier: Apache-2.0
"""Hygon: `hy-smi --json`, an object with one for each card.

Its keys name the unit, which changed from B to MiB, and the engine, which is DCU or HCU. Newer versions forget a comma
between the powers. The PCI address may be followed by ` --> SN: ...`.

Source: outputs of hy-smi for Z100L and BW in public code and issues (zstackio/zstack-utility: zstacklib/utils/gpu.py,
HygonAI's hcu_envcheck, SwanHubX/SwanLab), where the missing comma is seen, too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from vgpuctl.host.usage.maker_tools.texts import amount, by_sensor, in_bytes, ratio
from vgpuctl.host.usage.maker_tools.tool import ProgramRuns, ToolReading, UsageTool
from vgpuctl.model.json_yaml import parse_json
from vgpuctl.model.names import normalize_pci
from vgpuctl.model.usage import EngineUse, GpuUse

_NAME = "hy-smi"
_NO_COMMA = re.compile(r'(?<=[0-9])""(?=[A-Z])', re.ASCII)
_BYTES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def parse(text: str) -> tuple[GpuUse, ...]:
    """Return the use of each card."""
    document = parse_json(_NO_COMMA.sub('","', text))
    cards = [card for card in document.values() if isinstance(card, dict)] if isinstance(document, dict) else []
    uses: list[GpuUse] = []
    for card in cards:
        address = normalize_pci(str(card.get("PCI Bus", "")).partition(" --> ")[0])
        if address is None:
            continue
        busy = next((amount(card[key]) for key in ("DCU use (%)", "HCU use (%)") if key in card), None)
        uses.append(
            GpuUse(
                address,
                _NAME,
                memory_size_bytes=_memory(card, "vram Total Memory"),
                memory_used_bytes=_memory(card, "vram Total Used Memory"),
                engines=EngineUse(sm=ratio(busy)),
                power_watts=amount(card.get("Average Graphics Package Power (W)")),
                temperatures=by_sensor(
                    gpu=amount(card.get("Temperature (Sensor edge) (C)")),
                    hotspot=amount(card.get("Temperature (Sensor junction) (C)")),
                    memory=amount(card.get("Temperature (Sensor mem) (C)")),
                ),
            )
        )
    return tuple(uses)


def _memory(card: Mapping[str, Any], name: str) -> int | None:
    sizes = ((amount(card.get(f"{name} ({unit})")), factor) for unit, factor in _BYTES.items())
    return next((in_bytes(size, factor) for size, factor in sizes if size is not None), None)


def _read(run: ProgramRuns) -> ToolReading:
    words = ("--showuse", "--showmeminfo", "vram", "--showpower", "--showtemp", "--showbus", "--json")
    return ToolReading(parse(run(*words)))


TOOL = UsageTool(_NAME, ("/opt/hyhal/bin/hy-smi", "/usr/local/hyhal/bin/hy-smi", "/usr/bin/hy-smi"), _read)
