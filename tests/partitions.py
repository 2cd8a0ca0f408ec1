# SPDX-License-Identifier: Apache-2.0
"""Helpers for partitioned GPUs: set-mode requests, the state afterwards, and simulated hosts with one GPU."""

from __future__ import annotations

from tests.hosts import context, open_sim_host, picture
from vgpuctl.config.host_spec import parse_host_spec
from vgpuctl.gpu_setup.instance_plan import instance_names
from vgpuctl.model.gpu import MigSpec
from vgpuctl.operations.gpu_mode import ModeRequest, set_mode

FIRST, SECOND = "0000:3b:00.0", "0000:3f:00.0"
OFF = MigSpec()
HOST = """version: 1
title: one card
kernel: {kernel}
storage: {{pools: [{{name: default}}]}}
networks: [{{name: default}}]
gpus: [{{model: {model}, address: "0000:3b:00.0"{more}}}]
faults: [{faults}]
"""


def mig(*names):
    return MigSpec(names)


def act(ports, gpu, wanted=None, mixed=None, *, mode=None, drain=False, dry_run=False, progress=None):
    job = ModeRequest(gpu, mode, None, drain, mig=wanted, mixed_size=mixed)
    return set_mode(ports, context(dry_run=dry_run, progress=progress), job)


def small(directory, model="H100", *, kernel="6.8.0-45-generic", more="", faults=""):
    more = f", {more}" if more else ""
    return open_sim_host(directory, text=HOST.format(model=model, kernel=kernel, more=more, faults=faults))


def partition_state(host, gpu=FIRST):
    """Return a GPU's partition as the driver reports it: MIG, instances with placements, and mixed sizes."""
    reported = host.sim.nvml.gpu(gpu)
    instances = (
        []
        if reported.mig is None
        else [f"{p}@{s}" for p, s in sorted((i.profile_id, str(i.placement)) for i in reported.mig.instances)]
    )
    enabled = None if reported.mig is None else (reported.mig.enabled, reported.mig.pending_enabled)
    return enabled, instances, reported.mixed_size


def names(host, gpu=FIRST):
    return list(instance_names(host.sim.nvml.gpu(gpu).mig))


def everything(host, gpu=FIRST):
    """Return everything that a change of a partition could leave behind."""
    reported = host.sim.nvml.gpu(gpu)
    return partition_state(host, gpu), reported.scheduler.state, host.ports.host_file.read(), picture(host)


def configured_gpu(host, gpu=FIRST):
    """Return the host.yaml entry of a GPU."""
    return parse_host_spec(host.ports.host_file.read(), "f").gpus[gpu]
