# SPDX-License-Identifier: Apache-2.0
"""What the agent keeps of its operations on disk."""

from __future__ import annotations

import os
import time
from pathlib import Path

from vgpuctl.agent.operation_store import OperationStore
from vgpuctl.host.processes import HostProcesses

ENDED = (4_194_304, 1)
"""A pid beyond the highest that Linux gives, and a start time."""


def test_what_a_killed_agent_was_writing_is_removed_and_nothing_else(tmp_path: Path) -> None:
    store = OperationStore(tmp_path)
    store.probe()
    here = HostProcesses().current_process()
    name = f"{'a' * 32}.json"
    killed, own = (
        tmp_path / "operations" / f".{name}.vgpuctl-{pid}-{ticks}"
        for pid, ticks in (ENDED, (here.pid, here.start_ticks))
    )
    other = tmp_path / "operations" / ".notes"
    for path in (killed, own, other):
        path.write_text("{")
    old, young = (tmp_path / "operations" / f"{digit * 32}.damaged" for digit in "01")
    for path, days in ((old, 8), (young, 6)):
        path.write_text("{")
        os.utime(path, (time.time() - days * 86400,) * 2)
    assert store.load() == []
    assert [path.exists() for path in (old, young)] == [False, True]
    assert [path.exists() for path in (killed, own, other)] == [False, True, True]
