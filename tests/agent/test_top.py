# SPDX-License-Identifier: Apache-2.0
"""`top` with a real agent: its sample, its events, and what happens when it ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.agent.conftest import running
from vgpuctl import library
from vgpuctl.agent.client import connect
from vgpuctl.cli.top_source import AGENT, OWN, UsageSource
from vgpuctl.errors import Unreachable

HOST = "sim:a100-40"


def test_the_agent_is_read_while_it_runs_and_then_the_host_itself(tmp_path: Path) -> None:
    with running(HOST, tmp_path) as agent:
        agent.change("create-vm", name="web", profile="A100-4C")
        host = connect(f"agent:{agent.path}")
        with_own, alone = UsageSource(host, lambda: library.open_host(HOST)), UsageSource(host, None)
        first = with_own.sample()
        assert first.source == AGENT
        assert [row.vm for row in first.usage.vgpus] == ["web"]
        assert [process.name for process in with_own.read_processes("web")] == ["python3"]
        seen = [event.id for event in first.events or ()]
        assert seen
        agent.change("stop-vm", name="web", force=True)
        later = [event.id for event in with_own.sample().events or ()]
        assert later[: len(seen)] == seen
        assert len(later) > len(seen)
        assert len({*later}) == len(later), "an event is read once"
    after = with_own.sample()
    assert (after.source, after.events) == (OWN, None)
    assert [row.vm for row in after.usage.vgpus] == ["web"]
    with pytest.raises(Unreachable):
        alone.sample()
