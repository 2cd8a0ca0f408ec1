"""Runs vgpuctl in the lab and reads its JSON; creates emulated GPUs of each kind on the host."""

from __future__ import annotations

import json
from typing import Any

from tests.lab.machine import Lab

IGB = "0000:01:00.0"
TINY = "/var/lib/libvirt/images/tiny.qcow2"
A100 = "10de:20f1"
HOST_YAML = f"""version: 1
defaults:
  image: {TINY}
  memory: 192MiB
  vcpus: 1
"""
MEMBERS_MAY = "agent: {allow: {pools: [default], networks: [default]}}\n"
"""Lets members of the group vgpuctl create VMs by the defaults."""


def call(lab: Lab, *words: str, timeout: float = 480) -> tuple[int, dict[str, Any]]:
    """Return a command's exit status and JSON document. `timeout` is long: a guest may need minutes to start."""
    result = lab.run(["vgpuctl", "--json", "--yes", *words], check=False, timeout=timeout)
    try:
        return result.returncode, json.loads(result.stdout)
    except json.JSONDecodeError:
        raise AssertionError(f"{words}: no JSON: {result.stdout}{result.stderr}") from None


def must(lab: Lab, *words: str, status: int = 0) -> Any:
    """Run a command, check its exit status, and return its data, or its error if it reports one."""
    code, document = call(lab, *words)
    assert code == status, document
    return document["data"] if document["ok"] else document["error"]


def use_defaults(lab: Lab, more: str = "") -> None:
    """Write a host.yaml whose defaults make `create-vm --profile P` create a tiny guest; `more`: other sections."""
    lab.run("mkdir -p /etc/vgpuctl && cat > /etc/vgpuctl/host.yaml", stdin=HOST_YAML + more)


def put_gpu(lab: Lab, form: str, *options: str, address: str = IGB, vfs: int = 7) -> None:
    """Load the module, which turns an emulated SR-IOV device into an A100 with this `form` of NVIDIA's driver."""
    enabled = [] if form == "mdev-pf" else [f"vfs={vfs}"]
    lab.run(["modprobe", "vgpulab", f"pf={address}", f"form={form}", *enabled, *options])


def put_gpu_with_16_vfs(lab: Lab, form: str) -> str:
    """Hot-plug an NVMe with 16 VFs and turn it into a GPU, as `put_gpu` does; return its address."""
    address = lab.hotplug_nvme()
    put_gpu(lab, form, address=address, vfs=16)
    return address


def profiles(lab: Lab) -> dict[str, dict[str, Any]]:
    """Return every profile of the host by name."""
    return {p["profile"]: p for p in must(lab, "list-profiles", "--all")}


def leftovers(lab: Lab) -> str:
    """Return the VMs, devices, claims, operations and disks that are left on the host; empty on a clean host."""
    script = f"""virsh list --all --name; ls /sys/bus/mdev/devices 2>/dev/null
        ls /run/vgpuctl/claims 2>/dev/null; ls /run/vgpuctl/operations 2>/dev/null
        grep -Ls '^0$' /sys/bus/pci/devices/*/nvidia/current_vgpu_type
        ls /var/lib/libvirt/images | grep -v '^{TINY.rpartition("/")[2]}$'"""
    return lab.run(script, check=False).stdout.strip()


def wait_for_restore(lab: Lab) -> None:
    """Wait after a boot until vgpuctl-restore.service has finished; raise AssertionError with its log if it failed."""
    show = "systemctl show -p SubState,Result vgpuctl-restore.service"
    lab.wait_until(f"{show} | grep -qxE 'SubState=(exited|failed)'", timeout=300)
    shown = lab.run(show).stdout
    log = lab.run("systemctl is-system-running; journalctl -b --no-pager -u vgpuctl-restore -u libvirtd", check=False)
    assert "Result=success" in shown, f"{shown}{log.stdout}"
