# SPDX-License-Identifier: Apache-2.0
"""For each alert: metrics with which it fires, and metrics with which it stays silent.

Series are written as in promtool's unit tests, one value for each minute from 0 on, or each hour; each gets the labels
job and instance.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

HOST = "gpu-01"
INSTANCE = f"{HOST}:19935"
GPU = "0000:3b:00.0"
ON_GPU = f"GPU {GPU} of {INSTANCE} (VMs on it: 1)"
G = f'{{gpu="{GPU}"}}'
VDI = 'vm="vdi-001",vgpu="0"'
V = f"{{{VDI}}}"
INFO = {f'vgpuctl_vgpu_info{{gpu="{GPU}",profile="A40-8Q",{VDI}}}': "1x200"}
"""A VM with one vGPU on the GPU."""
AT_HOST = f"ssh {HOST} "
SHOW_GPU, CORDON, SHOW_VM = (
    f"{AT_HOST}vgpuctl {words}" for words in (f"show-gpu {GPU}", f"cordon {GPU}", "show-vm vdi-001")
)
EXPLAIN = f"{AT_HOST}vgpuctl explain A40-8Q"

Series = Mapping[str, str]


class Alert(NamedTuple):
    """What an alert is expected to say `at` so many minutes with the series `fires`, and when it is silent.

    `labels`: besides instance, severity and app. `silent`: several sets of series, all at that minute; `early`: a
    minute at which it does not fire yet. `minutes`: between two values.
    """

    severity: str
    at: int
    fires: Series
    silent: tuple[Series, ...]
    summary: str
    command: str
    labels: Mapping[str, str] = {"gpu": GPU}
    early: int | None = None
    has_instance: bool = True
    minutes: int = 1


def used(bytes_used: int, size: int = 8000, reserved: int = 0) -> Series:
    """Return the framebuffer of the vGPU."""
    values = {"used": bytes_used, "size": size, "reserved": reserved}
    return INFO | {f"vgpuctl_vgpu_memory_{key}_bytes{V}": f"{value}x60" for key, value in values.items()}


def crashed(number: int, at: int = 0) -> Series:
    """Return so many VMs on the GPU that crashed in that second."""
    names = [f"vdi-{n:03}" for n in range(1, number + 1)]
    infos = {f'vgpuctl_vgpu_info{{gpu="{GPU}",vm="{name}",vgpu="0"}}': "1x60" for name in names}
    return infos | {f'vgpuctl_vm_last_crash_timestamp_seconds{{vm="{name}"}}': f"{at}x60" for name in names}


def licences(licensed: int, unlicensed: int) -> Series:
    """Return vGPUs in so many VMs, with a licence or without one."""
    states = ["licensed"] * licensed + ["unlicensed-restricted"] * unlicensed
    return {
        f'vgpuctl_vgpu_license_state{{vm="vdi-{n:03}",vgpu="0",state="{state}"}}': "1x60"
        for n, state in enumerate(states)
    }


def busy(sm: float, share: float = 0.25) -> Series:
    """Return how busy the vGPU's part of the cores is."""
    use = f'vgpuctl_vgpu_engine_utilization_ratio{{{VDI},engine="sm"}}'
    return INFO | {use: f"{sm}x200", f"vgpuctl_vgpu_time_share_ratio{V}": f"{share}x200"}


def free(*values: str, used_by: int = 3) -> Series:
    """Return how many more of a profile fit, on one host or two."""
    hosts = {
        f'vgpuctl_profile_free{{profile="A40-8Q",instance="gpu-{n:02}:19935"}}': v for n, v in enumerate(values, 1)
    }
    return hosts | {'vgpuctl_profile_used{profile="A40-8Q",instance="gpu-01:19935"}': f"{used_by}x200"}


def xid(number: int) -> Series:
    return INFO | {f'vgpuctl_gpu_xid_last_timestamp_seconds{{gpu="{GPU}",xid="{number}"}}': "0x60"}


def lowered(reason: str, values: str) -> Series:
    sampled = {"vgpuctl_agent_last_sample_timestamp_seconds": "0x60"}
    return INFO | sampled | {f'vgpuctl_gpu_clock_event_active{{gpu="{GPU}",reason="{reason}"}}': values}


def one(name: str, values: str) -> Series:
    return INFO | {name: values}


TOKEN = 'vgpuctl_license_token_expiry_timestamp_seconds{license="cad"}'
HOT = f'vgpuctl_gpu_temperature_celsius{{gpu="{GPU}",sensor="%s"}}'
SM = f'vgpuctl_gpu_engine_utilization_ratio{{gpu="{GPU}",engine="sm"}}'
ECC = f'vgpuctl_gpu_ecc_errors_total{{gpu="{GPU}",type="%s"}}'
ACTION = f'vgpuctl_gpu_recovery_action_info{{gpu="{GPU}",action="%s"}}'
VM_LABELS = {"gpu": GPU, "vm": "vdi-001"}
VGPU_LABELS = {**VM_LABELS, "vgpu": "0"}

ALERTS = {
    "AgentDown": Alert(
        "critical", 6, {"up": "0x20"}, ({"up": "1x20"},),
        f"The host agent of {INSTANCE} does not answer; its VMs do not need it",
        f"{AT_HOST}systemctl status vgpuctl-agent.service", {}, early=4,
    ),
    "SampleStale": Alert(
        "critical", 3, {"vgpuctl_agent_last_sample_timestamp_seconds": "0x20"},
        ({"vgpuctl_agent_last_sample_timestamp_seconds": "0+60x20"},),
        f"The GPUs of {INSTANCE} were last read 3m 0s ago. If the driver hangs, each nvidia-smi hangs too: start none",
        f'{AT_HOST}"journalctl -k -g NVRM -n 20"', {}, early=2,
    ),
    "GpuLost": Alert(
        "critical", 1, one(f"vgpuctl_gpu_up{G}", "0x5"), (one(f"vgpuctl_gpu_up{G}", "1x5"),),
        f"{ON_GPU} is lost", SHOW_GPU,
    ),
    "GpuMissing": Alert(
        "critical", 6, {"vgpuctl_gpus_expected": "2x20", f"vgpuctl_gpu_info{G}": "1x20"},
        ({"vgpuctl_gpus_expected": "1x20", f"vgpuctl_gpu_info{G}": "1x20"},),
        f"{INSTANCE} lacks GPUs that it should have: 1", f"{AT_HOST}vgpuctl doctor", {}, early=4,
    ),
    "GpuXid": Alert(
        "critical", 9, xid(79), (xid(13), xid(31)), f"{ON_GPU} reported Xid 79, which no guest causes",
        f'{AT_HOST}"journalctl -k -g Xid -n 20"', {"gpu": GPU, "xid": "79"},
    ),
    "EccUncorrected": Alert(
        "critical", 5, one(ECC % "uncorrected", "0 0 0 1 1 1 1"),
        (one(ECC % "corrected", "0 0 0 9 9 9 9"), one(ECC % "uncorrected", "7x20")),
        f"{ON_GPU} had uncorrected memory errors", CORDON, {"gpu": GPU, "type": "uncorrected"},
    ),
    "ResetNeeded": Alert(
        "warning", 6, one(ACTION % "reset", "1x20"),
        (one(ACTION % "none", "1x20"), one(f"vgpuctl_gpu_row_remap_pending{G}", "0x20")),
        f"{ON_GPU} needs a reset, without VMs", CORDON, early=4,
    ),
    "Throttled": Alert(
        "warning", 16, lowered("hw-thermal-slowdown", "1x20"),
        (lowered("sw-power-cap", "1x20"), lowered("hw-thermal-slowdown", "_x10 1x4 _x10")),
        f"{ON_GPU} ran slower than it can, from heat or a power brake, for most of 15 minutes", SHOW_GPU,
    ),
    "VmCrashed": Alert(
        "warning", 9, crashed(1), (crashed(0), crashed(1, at=-600)), f"VM vdi-001 on {ON_GPU} crashed",
        f"{AT_HOST}vgpuctl log --vm vdi-001", VM_LABELS,
    ),
    "VmsCrashedTogether": Alert(
        "critical", 9, crashed(3), (crashed(2),),
        f"3 VMs on {ON_GPU.replace(': 1', ': 3')} crashed within 10 minutes", CORDON,
    ),
    "VgpuMissing": Alert(
        "critical", 3, one('vgpuctl_vm_vgpus_missing{vm="vdi-001"}', "1x9"),
        (one('vgpuctl_vm_vgpus_missing{vm="vdi-001"}', "0x9"),),
        f"VM vdi-001 on {ON_GPU} runs without 1 of its vGPUs", SHOW_VM, VM_LABELS, early=1,
    ),
    "RestoreFailed": Alert(
        "critical", 6, {"vgpuctl_restore_failed_vgpus": "2x9"}, ({"vgpuctl_restore_failed_vgpus": "0x9"},),
        f"{INSTANCE} lacks vGPUs of its host.yaml: 2", f"{AT_HOST}vgpuctl restore-host", {}, early=4,
    ),
    "Unlicensed": Alert(
        "warning", 11, one(f'vgpuctl_vgpu_license_state{{{VDI},state="unlicensed"}}', "1x20"),
        (one(f'vgpuctl_vgpu_license_state{{{VDI},state="licensed"}}', "1x20"),),
        f"VM vdi-001 on {ON_GPU} has no licence, and slows down", SHOW_VM, VGPU_LABELS, early=9,
    ),
    "LicenceServerDown": Alert(
        "critical", 7, licences(4, 6), (licences(1, 4), licences(45, 5)),
        "60% of all vGPUs have no licence: check the licence server", f"{AT_HOST}vgpuctl show-vm vdi-004",
        {}, early=4, has_instance=False,
    ),
    "LicenceTokenEnds": Alert(
        "warning", 90, {TOKEN: f"{20 * 86400}x120"},
        ({TOKEN: f"{40 * 86400}x120"},),
        f"The token of licence cad for guests of {INSTANCE} ends soon, or has ended: "
        "19d 22h 30m 0s left",
        f"{AT_HOST}vgpuctl doctor license-token", {"license": "cad"}, early=50,
    ),
    "FramebufferFull": Alert(
        "warning", 12, used(7000, reserved=700),
        (used(7000), used(7000, reserved=700) | {'vgpuctl_vm_info{vm="vdi-001",os="windows11"}': "1x60"}),
        f"VM vdi-001 on {ON_GPU} uses 95.89% of its framebuffer", f"{AT_HOST}vgpuctl list-profiles",
        VGPU_LABELS, early=8,
    ),
    "StuckWrite": Alert(
        "critical", 3, {"vgpuctl_stuck_writes": "1x9"}, ({"vgpuctl_stuck_writes": "0x9"},),
        f"The kernel of {INSTANCE} does not end writes of vgpuctl: 1", f"{AT_HOST}vgpuctl doctor", {}, early=1,
    ),
    "Leak": Alert(
        "warning", 16, {'vgpuctl_leaks{kind="vgpu"}': "3x20"}, ({'vgpuctl_leaks{kind="vgpu"}': "0x20"},),
        f"Nobody owns 3 of {INSTANCE} (vgpu)", f"{AT_HOST}vgpuctl reconcile-host --dry-run", {"kind": "vgpu"}, early=14,
    ),
    "Drift": Alert(
        "warning", 16, one(f'vgpuctl_gpu_drift{{gpu="{GPU}",what="mode"}}', "1x20"),
        (one(f'vgpuctl_gpu_drift{{gpu="{GPU}",what="mode"}}', "0x20"),),
        f"{ON_GPU} differs from host.yaml (mode)", f"{AT_HOST}vgpuctl diff", {"gpu": GPU, "what": "mode"}, early=14,
    ),
    "NoRoom": Alert(
        "warning", 17, free("0x30", "0x30"), (free("0x30", "1x30"), free("0x30", used_by=0)),
        "No host has room for another A40-8Q, which VMs use", EXPLAIN,
        {"profile": "A40-8Q"}, early=14, has_instance=False,
    ),
    "RoomEndsSoon": Alert(
        "info", 8 * 24 * 60, free("40-0.12x200"),
        (free("40x200"), free("_x80 40-0.12x120"), free("400-0.12x200")),
        "The room for A40-8Q ends within 14 days, if it shrinks as in the last 7",
        EXPLAIN,
        {"profile": "A40-8Q"}, early=7 * 24 * 60, has_instance=False, minutes=60,
    ),
    "Starved": Alert(
        "info", 125, busy(0.25), (busy(0.2), busy(0.25, share=0.5)),
        f"VM vdi-001 on {ON_GPU} used its whole share of the GPU's time for 2 hours", SHOW_GPU, VGPU_LABELS, early=115,
    ),
    "GpuHot": Alert(
        "warning", 11, one(HOT % "gpu", "86x20"), (one(HOT % "gpu", "85x20"), one(HOT % "memory", "95x20")),
        f"{ON_GPU} has 86 degrees Celsius", SHOW_GPU, early=9,
    ),
    "GpuBusy": Alert(
        "info", 62, one(SM, "0.99x90"), (one(SM, "0.9x90"),),
        f"The cores of {ON_GPU} are busy: 99%", SHOW_GPU, early=58,
    ),
}  # fmt: skip
