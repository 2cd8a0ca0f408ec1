# SPDX-License-Identifier: Apache-2.0
"""MetaX: `mx-smi`, a table with two rows for each card.

Source: outputs of mx-smi 2.1 and 2.2 for C500, C550 and N260 in public guides (PaddleNLP, t9k's documents).
"""

from __future__ import annotations

from vgpuctl.host.usage.maker_tools.texts import read_card_table
from vgpuctl.host.usage.maker_tools.tool import ProgramRuns, ToolReading, UsageTool

_NAME = "mx-smi"


def _read(run: ProgramRuns) -> ToolReading:
    return ToolReading(read_card_table(run(), _NAME, utilization=(0, 2)))


TOOL = UsageTool(_NAME, ("/usr/bin/mx-smi", "/opt/mxdriver/bin/mx-smi"), _read)
