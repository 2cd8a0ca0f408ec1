# SPDX-License-Identifier: Apache-2.0
"""Reads of a full host: those that the agent's snapshot answers ask neither libvirt nor a device."""

from __future__ import annotations

from pathlib import Path

from tests.agent import full_host
from tests.agent.conftest import running
from tests.faults import Watch


def test_a_list_of_512_vms_makes_no_call_of_libvirt(tmp_path: Path) -> None:
    watch = Watch()
    with running(full_host.write_scenario(tmp_path), tmp_path, watch_reads=watch.watch) as agent:
        assert len(agent.ask("GET", "/v1/list-vms").document["data"]) == full_host.VMS
        fresh = agent.ask("GET", "/v1/list-vms?fresh=1")
        assert "hypervisor.domains" in watch.calls
        watch.calls.clear()
        answer = agent.ask("GET", "/v1/list-vms")
        assert answer.document == fresh.document
        assert int(answer.headers["age"]) <= 60
        ports = {call.partition(".")[0] for call in watch.calls}
        assert ports <= {"operations", "claims"}, "files that say whether an operation began or ended"
