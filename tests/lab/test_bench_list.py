"""Compares lists of 500 VMs in the lab: by the agent, by vgpuctl through it, by libvirt. No time fails a test.

Everything in the lab is emulated, so only the ratios are meaningful, not the seconds.
"""

from __future__ import annotations

import json

import pytest

from tests.bench.list_driver import VMS
from tests.bench.paired import Pair, runs, tell
from tests.lab.machine import Lab
from tests.lab.test_agent import serve

LIMIT = 1.0
SCRIPT = "/opt/vgpuctl/src/tests/bench/list_driver.py"
PAIRS = (
    ("agent", "the agent's answer", "virsh", "virsh list --all"),
    ("agent", "the agent's answer", "libvirt", "libvirt's answers"),
    ("vgpuctl", "vgpuctl list-vms through the agent", "virsh", "virsh list --all"),
)


@pytest.mark.slow
@pytest.mark.deadline(1800)
def test_500_vms_next_to_virsh(lab: Lab, pytestconfig: pytest.Config) -> None:
    lab.at("agent", serve)
    words = ["vgpuctl", "create-vm", "NAME", "--profile", "A100-4C", "--reserve", "running", "--print-xml"]
    xml = lab.run(words).stdout.replace('state="making"', 'state="ready"')
    lab.run("systemctl stop vgpuctl-agent.socket vgpuctl-agent.service", timeout=200)  # it would look after each VM
    lab.run(["python3", SCRIPT, "define"], stdin=xml, timeout=1200)
    lab.run("systemctl start vgpuctl-agent.service")
    output = lab.run(["python3", SCRIPT, "time", str(runs(3, 21))], timeout=1200).stdout
    times: dict[str, list[float]] = json.loads(output)
    for ours, our_name, theirs, their_name in PAIRS:
        pair = Pair(tuple(times[ours]), tuple(times[theirs]))
        tell(pytestconfig, f"{VMS} VMs, {our_name}, of {their_name}", pair.ratio, LIMIT, f"{pair.medians()}, emulated")
