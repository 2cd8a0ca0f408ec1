# SPDX-License-Identifier: Apache-2.0
"""Setting the schedulers of a simulated host's GPUs, and what set-scheduler leaves behind."""

from __future__ import annotations

from tests.layouts import A100
from tests.worlds import WAIT_SECONDS, Silent, create, open_host, picture, stop, wish
from vgpuctl.engine.restore import restore_host
from vgpuctl.engine.scheduler import SchedulerJob, set_scheduler
from vgpuctl.model.scheduler import Policy, SchedulerSpec, SchedulerState
from vgpuctl.spec.host import parse_host_spec

EQUAL, FIXED = Policy.EQUAL_SHARE, Policy.FIXED_SHARE
BEST = SchedulerState(Policy.BEST_EFFORT)
TWO_MS = SchedulerSpec(FIXED, 2)
SMALL = """version: 1
title: one card
kernel: 6.8.0-45-generic
nvidia: {{driver: "{driver}", nvml: {nvml}}}
gpus: [{{address: "0000:3b:00.0", model: A100, vfs: {{total: 2, enabled: 2}}}}]
{more}
"""
POOL = "storage: {pools: [{name: default}]}"
FILE = "etc/modprobe.d/vgpuctl-nvidia.conf"


def small(directory, driver="550.90.05", nvml="present", more=""):
    return open_host(directory, text=SMALL.format(driver=driver, nvml=nvml, more=more))


def act(world, wanted, *, gpu=A100, dry_run=False, progress=None, **more):
    job = SchedulerJob(gpu, wanted, wait_seconds=WAIT_SECONDS, **more)
    return set_scheduler(world, job, dry_run=dry_run, progress=progress or Silent())


def runs(host, gpu=A100):
    return host.sim.nvml.gpu(gpu).scheduler.state


def said(host, gpu=A100):
    text = host.world.host_file.read()
    known = parse_host_spec(text, "host.yaml").gpus.get(gpu) if text is not None else None
    return known.scheduler if known is not None else None


def everything(host):
    return runs(host), said(host), picture(host)


def restore(host):
    spec = parse_host_spec(host.world.host_file.read(), "host.yaml")
    return restore_host(host.world, spec, dry_run=False, wait_seconds=5.0, progress=Silent())


def with_vms(host):
    create(host.world, wish("A100-4C", name="on"))
    create(host.world, wish("A100-4C", name="off"))
    stop(host.world, "off")
    return host
