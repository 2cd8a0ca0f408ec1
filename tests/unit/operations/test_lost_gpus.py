# SPDX-License-Identifier: Apache-2.0
"""NVML answers, but not for one GPU: that takes nothing, and each command that has to do with it names it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tests.hosts import SimulatedHost, create, open_sim_host, request, start
from tests.meanwhile import unchanged, with_calls
from tests.unit.doctor.check_results import run_check
from vgpuctl.errors import HostCannot, NoCapacity
from vgpuctl.observe import ReadScope, observe
from vgpuctl.operations.queries import list_gpus, list_profiles

LOST = "0000:3b:00.0"
NEW, OLD = "6.8.0-45-generic", "5.14.0-427.el9_4.x86_64"
BACKENDS = [("A100", NEW, "A100-4C"), ("A40", OLD, "A40-8Q"), ("T4", OLD, "T4-2Q")]


def lose(tmp_path: Path, model: str, kernel: str, profile: str) -> SimulatedHost:
    """Return a host with VM web on a GPU that is lost afterwards, and another GPU of its model."""
    text = f"version: 1\nkernel: {kernel}\ngpus: [{{model: {model}, count: 2}}]\n"
    host = open_sim_host(tmp_path, text=text)
    create(host.ports, request(profile, name="web", gpu=LOST), start=False)
    nvml = host.ports.nvml
    ports = with_calls(host.ports, "nvml", gpu=lambda address: None if address == LOST else nvml.gpu(address))
    return dataclasses.replace(host, ports=ports)


@pytest.mark.parametrize(("model", "kernel", "profile"), BACKENDS)
def test_nothing_new_goes_there_and_a_vm_on_it_does_not_start(tmp_path, model, kernel, profile):
    host = lose(tmp_path, model, kernel, profile)
    with unchanged(host), pytest.raises(HostCannot, match=f"{LOST} .* cannot be used: its driver lost it"):
        start(host.ports, "web")
    made = create(host.ports, request(profile, name="next"), start=False)
    assert [v.gpu != LOST for v in made.data.vgpus] == [True]
    with pytest.raises(NoCapacity) as raised:
        create(host.ports, request(profile, name="more", gpu=LOST), start=False)
    lost = "its driver lost it: NVML answers, but not for this GPU; vgpuctl doctor nvml"
    assert raised.value.facts["details"] == [f"{LOST}: {lost}"]


def test_doctor_and_lists_name_it_and_count_the_other_gpu_alone(tmp_path):
    host = lose(tmp_path, *BACKENDS[0])
    finding = run_check("nvml", observe(host.ports, ReadScope(types=True)))
    assert finding.verdict == "fail"
    assert LOST in finding.evidence[0]
    assert "on it: web" in finding.evidence[0]
    lost, other = list_gpus(host.ports).data
    assert "its driver lost it" in lost.problems[0]
    assert other.problems == ()
    (profile,) = [p for p in list_profiles(host.ports).data if p.profile == "A100-4C"]
    assert (profile.framebuffer_mib, profile.free, [g.address for g in profile.gpus]) == (4096, 10, ["0000:3f:00.0"])
