# SPDX-License-Identifier: Apache-2.0
"""Helpers for set-scheduler: requests, and what it leaves on a simulated host."""

from __future__ import annotations

from tests.hosts import context, create, open_sim_host, picture, request, stop
from tests.layouts import A100
from vgpuctl.config.host_spec import parse_host_spec
from vgpuctl.model.vgpu_scheduler import SchedulerPolicy, SchedulerSpec, SchedulerState
from vgpuctl.operations.gpu_scheduler import SchedulerRequest, set_scheduler
from vgpuctl.operations.restore import restore_host

EQUAL, FIXED = SchedulerPolicy.EQUAL_SHARE, SchedulerPolicy.FIXED_SHARE
BEST = SchedulerState(SchedulerPolicy.BEST_EFFORT)
TWO_MS = SchedulerSpec(FIXED, 2)
SMALL = """version: 1
title: one card
kernel: 6.8.0-45-generic
nvidia: {{driver: "{driver}", nvml: {nvml}}}
gpus: [{{address: "0000:3b:00.0", model: A100, vfs: {{total: 2, enabled: 2}}}}]
{more}
"""
POOL = "storage: {pools: [{name: default}]}"


def paste(host, line):
    """Do what the error says: add the line to a file of modprobe."""
    folder = host.directory / "state" / "etc" / "modprobe.d"
    folder.mkdir(exist_ok=True)
    with open(folder / "vgpuctl-nvidia.conf", "a") as file:
        file.write(f"{line}\n")


def small(directory, driver="550.90.05", nvml="present", more=""):
    return open_sim_host(directory, text=SMALL.format(driver=driver, nvml=nvml, more=more))


def act(ports, wanted, *, gpu=A100, dry_run=False, progress=None, **more):
    job = SchedulerRequest(gpu, wanted, **more)
    return set_scheduler(ports, context(dry_run=dry_run, progress=progress), job)


def runs(host, gpu=A100):
    return host.sim.nvml.gpu(gpu).scheduler.state


def configured_scheduler(host, gpu=A100):
    text = host.ports.host_file.read()
    gpu_spec = parse_host_spec(text, "host.yaml").gpus.get(gpu) if text is not None else None
    return gpu_spec.scheduler if gpu_spec is not None else None


def everything(host):
    return runs(host), configured_scheduler(host), picture(host)


def restore(host):
    spec = parse_host_spec(host.ports.host_file.read(), "host.yaml")
    return restore_host(host.ports, context(wait_seconds=5.0), spec)


def with_vms(host):
    create(host.ports, request("A100-4C", name="on"))
    create(host.ports, request("A100-4C", name="off"))
    stop(host.ports, "off")
    return host
