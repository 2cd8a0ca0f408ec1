# SPDX-License-Identifier: Apache-2.0
"""The metrics of a host with faults, as an agent serves them: every metric, with every label."""

from __future__ import annotations

import re
from collections.abc import Callable

GIB = 1 << 30
GPU, LOST = "0000:3b:00.0", "0000:af:00.0"

_AGENT = """\
agent_info{version="0.9",driver_version="595.58"} 1
driver_support_end_timestamp_seconds 1800000000
agent_last_sample_timestamp_seconds NOW
agent_sample_duration_seconds 0.05
agent_sample_errors_total{source="nvml"} 2
agent_nvml_paused 0
license_token_expiry_timestamp_seconds{license="cad"} 1800000000
host_lock_wait_seconds 0
agent_event_subscribers 1
agent_events_dropped_total 0
agent_libvirt_up 1
agent_libvirt_reconnects_total 0
gpus_expected 3
leaks{kind="vgpu"} 1
stuck_writes 1
unfinished_operations 0
restore_failed_vgpus 1
profile_free{profile="A40-8Q"} 0
profile_capacity{profile="A40-8Q"} 4
profile_used{profile="A40-8Q"} 4
profile_free{profile="A40-12Q"} 5
profile_capacity{profile="A40-12Q"} 5
profile_used{profile="A40-12Q"} 0
"""
_GPU = """\
gpu_info{gpu_uuid="GPU-1",model="A40",serial="1",vbios="94",backend="vendor-vf",mode="vgpu",numa="0"} 1
gpu_up 1
gpu_memory_size_bytes 48318382080
gpu_memory_used_bytes 20000000000
gpu_memory_reserved_bytes 500000000
gpu_memory_given_bytes 48000000000
gpu_vgpus 6
gpu_engine_utilization_ratio{engine="sm"} 0.99
gpu_engine_utilization_ratio{engine="memory"} 0.4
gpu_power_watts 250
gpu_power_limit_watts 300
gpu_energy_joules_total NOW
gpu_temperature_celsius{sensor="gpu"} 90
gpu_clock_hertz{clock="sm"} 1410000000
gpu_clock_event_active{reason="hw-thermal-slowdown"} 1
gpu_ecc_errors_total{type="corrected"} 3
gpu_ecc_errors_total{type="uncorrected"} NOW
gpu_row_remap_pending 1
gpu_row_remap_failed 0
gpu_retired_pages{cause="double-bit"} 1
gpu_recovery_action_info{action="reset"} 1
gpu_xid_errors_total{xid="79"} 1
gpu_xid_last_timestamp_seconds{xid="79"} NOW
gpu_pcie_replays_total 0
gpu_pcie_link_width_lanes 16
gpu_nvlink_errors_total{type="crc"} 0
gpu_scheduler_info{policy="fixed_share"} 1
gpu_timeslice_seconds 0.002
gpu_drift{what="mode"} 1
gpu_instance_info{gpu_instance="1",profile="1g.6gb"} 1
"""
_VM = """\
vm_info{vm_uuid="1",os="linux",pool="cad",owner="ada",managed="true"} 1
vm_state{state="running"} 1
vm_vgpus_missing 1
vm_started_timestamp_seconds NOW
vm_crashes_total 1
vm_last_crash_timestamp_seconds NOW
"""
_VGPU = """\
vgpu_info{gpu="GPU",profile="A40-8Q",vm_uuid="1",vgpu_uuid="2",device="d",gpu_instance="",backend="vendor-vf"} 1
vgpu_memory_size_bytes 8589934592
vgpu_memory_used_bytes 8400000000
vgpu_memory_reserved_bytes 100000000
vgpu_engine_utilization_ratio{engine="sm"} 0.25
vgpu_time_share_ratio 0.25
vgpu_license_state{state="unlicensed"} 1
vgpu_license_expiry_timestamp_seconds 2000000000
vgpu_guest_driver_info{version="595.58",release="20",fit="supported"} 1
vgpu_encoder_sessions 1
vgpu_encoder_fps 30
vgpu_encoder_latency_seconds 0.004
vgpu_capture_sessions 1
vgpu_capture_fps 30
vgpu_capture_latency_seconds 0.004
vgpu_frame_rate_limit_fps 60
"""
VMS = tuple(f"vdi-{number:03}" for number in range(1, 7))


def exposition(now: float) -> str:
    """Return the metrics of a host with two GPUs, one of them lost, and six VMs on the other."""
    parts = [
        _with(_AGENT, ""),
        _with(_GPU, f'gpu="{GPU}"'),
        f'vgpuctl_gpu_up{{gpu="{LOST}"}} 0\n',
        *(_with(_VM, f'vm="{vm}"') + _with(_VGPU.replace("GPU", GPU), f'vm="{vm}",vgpu="0"') for vm in VMS),
    ]
    return "".join(parts).replace(" NOW\n", f" {now:.3f}\n")


def _with(lines: str, labels: str) -> str:
    """Return lines with the prefix of all metrics and the labels of what they are about."""
    put: Callable[[re.Match[str]], str] = lambda m: f"vgpuctl_{m[1]}{{{','.join(filter(None, (labels, m[3])))}}}{m[4]}"  # noqa: E731
    return re.sub(r"^(\w+)(\{(.*)\})?( \S+)$", put, lines, flags=re.MULTILINE)
