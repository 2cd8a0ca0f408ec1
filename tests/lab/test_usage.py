# SPDX-License-Identifier: Apache-2.0
"""The use of GPUs on a real kernel: the vGPU of a running guest, a pause for changes, and a driver that hangs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.lab.console import guest_devices
from tests.lab.machine import Lab
from tests.lab.nvidia_host import put_nvml
from tests.lab.test_after_boot import INSTALLED
from tests.lab.vgpuctl_in import A100, IGB, must, put_gpu, use_defaults

HANG = "/sys/module/vgpulab/parameters/hang"
ASK = """
import http.client, socket
connection = http.client.HTTPConnection("agent")
connection.sock = socket.socket(socket.AF_UNIX)
connection.sock.connect("/run/vgpuctl-agent/agent.sock")
connection.request("GET", "/v1/metrics")
print(connection.getresponse().read().decode())
"""
METRICS = f"python3 -c '{ASK}' 2>/dev/null"
IN_KERNEL = "ps -eo stat=,args= | grep -c '^D.*host.usage.child' || true"
"""How many processes that read the use wait in the kernel, where no signal ends them."""


def use_of(lab: Lab) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Return the use of the only GPU and of the only vGPU."""
    data = must(lab, "top", "--once")
    (gpu,), (vgpu,) = data["gpus"], data["vgpus"]
    return gpu["use"], vgpu["use"]


@pytest.mark.deadline(600)
@pytest.mark.parametrize("form", ["mdev-pf", "vendor-vf"])
def test_the_use_of_a_running_guest(lab: Lab, form: str) -> None:
    put_gpu(lab, form)
    put_nvml(lab)
    use_defaults(lab)
    made = must(lab, "create-vm", "vm-1", "--profile", "A100-4C")
    assert A100 in guest_devices(lab, "vm-1")
    gpu, vgpu = use_of(lab)
    assert (gpu["address"], gpu["up"], gpu["source"]) == (IGB, True, "nvml")
    assert vgpu is not None
    assert (vgpu["vm_uuid"], vgpu["memory_size_bytes"], vgpu["memory_used_bytes"]) == (made["uuid"], 4 << 30, 1 << 30)
    assert vgpu["engines"]["sm"] == 0.1
    must(lab, "stop-vm", "vm-1")
    assert use_of(lab)[1] is None


@pytest.mark.quick
@pytest.mark.deadline(600)
def test_a_driver_that_hangs_in_the_kernel_stops_its_values_alone(lab: Lab) -> None:
    lab.run(INSTALLED)
    put_gpu(lab, "vendor-vf")
    put_nvml(lab)
    use_defaults(lab)
    must(lab, "install-host", "--agent")
    lab.wait_until(f"{METRICS} | grep -q '^vgpuctl_gpu_up.* 1'", timeout=120)
    lab.run(f"echo 1 > {HANG}")
    lab.wait_until(f"{METRICS} | grep -q '^vgpuctl_agent_sample_errors_total.*nvml'", timeout=120)
    assert int(lab.run(IN_KERNEL).stdout) >= 1
    text = lab.run(METRICS).stdout
    assert "vgpuctl_gpu_info{" in text
    assert "vgpuctl_agent_libvirt_up 1" in text
    assert "vgpuctl_gpu_up{" not in text
    assert must(lab, "events"), "the agent goes on"
    lab.run(f"echo 0 > {HANG}")
    lab.wait_until(f"{METRICS} | grep -q '^vgpuctl_gpu_up.* 1'", timeout=180)
    assert lab.run(IN_KERNEL).stdout.strip() == "0"
