# SPDX-License-Identifier: Apache-2.0
"""Enflame: `efsmi -q`, a listing with a block for each card, whose PCI address is in four lines.

Source: an output of efsmi 1.4 for S60 in zstackio/zstack-utility (zstacklib/zstacklib/gpu/vendors/enflame.py); older
versions say `Mem Size` and `Mem Usage`.
"""

from __future__ import annotations

import re

from vgpuctl.host.usage.maker_tools.texts import amount, by_sensor, mib_in_bytes, ratio, read_blocks, word
from vgpuctl.host.usage.maker_tools.tool import ProgramRuns, ToolReading, UsageTool
from vgpuctl.model.names import normalize_pci
from vgpuctl.model.usage import EngineUse, GpuUse

_NAME = "efsmi"
_CARD = re.compile(r"DEV ID ([0-9]{1,3})", re.ASCII)


def parse(text: str) -> tuple[GpuUse, ...]:
    """Return the use of each card."""
    uses: list[GpuUse] = []
    for _, block in read_blocks(text, _CARD):
        values = {key: value for (_, key), value in reversed(block.items())}
        address = normalize_pci(
            "{}:{}:{}.{}".format(*(values.get(key, "") for key in ("Domain", "Bus", "Dev", "Func")))
        )
        if address is None:
            continue
        size, used = values.get("Total Size", values.get("Mem Size")), values.get("Used Size", values.get("Mem Usage"))
        celsius = re.sub(r"\u2103", "C", values.get("GCU Temp", ""))
        uses.append(
            GpuUse(
                address,
                _NAME,
                serial=word(values.get("Dev SN")),
                memory_size_bytes=mib_in_bytes(amount(size, "MiB")),
                memory_used_bytes=mib_in_bytes(amount(used, "MiB")),
                memory_reserved_bytes=mib_in_bytes(amount(values.get("Reserved Size"), "MiB")),
                engines=EngineUse(
                    sm=ratio(amount(values.get("GCU Usage"), "%")),
                    encoder=ratio(amount(values.get("Encoder Usage"), "%")),
                    decoder=ratio(amount(values.get("Decoder Usage"), "%")),
                ),
                power_watts=amount(values.get("Cur Power"), "W"),
                power_limit_watts=amount(values.get("Power Capa"), "W"),
                temperatures=by_sensor(gpu=amount(celsius, "C")),
            )
        )
    return tuple(uses)


def _read(run: ProgramRuns) -> ToolReading:
    return ToolReading(parse(run("-q")))


TOOL = UsageTool(_NAME, ("/usr/bin/efsmi", "/usr/local/bin/efsmi"), _read)
