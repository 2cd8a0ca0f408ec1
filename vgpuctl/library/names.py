# SPDX-License-Identifier: Apache-2.0
"""Names for completion, each read from as little of the host as can be."""

from __future__ import annotations

from vgpuctl.library.call import Calls, query
from vgpuctl.model.names import normalize_pci


class NameCalls(Calls):
    """Calls that return names with a few words about each. They look at no more than they must: a user waits."""

    @query
    def vm_names(self) -> tuple[tuple[str, str], ...]:
        """Return each VM's name and state, read from libvirt alone."""
        return tuple((domain.name, str(domain.state)) for domain in self._ports.hypervisor.domains())

    @query
    def pool_names(self) -> tuple[tuple[str, str], ...]:
        """Return each storage pool's name and its path, or its kind if it has no path."""
        return tuple((pool.name, pool.path or pool.kind) for pool in self._ports.storage.pools())

    @query
    def vgpu_names(self) -> tuple[tuple[str, str], ...]:
        """Return the name of each vGPU without a VM, and what it is, read from host.yaml alone."""
        from vgpuctl.library import requests

        vgpus = requests.read_spec_of_host(self._ports).vgpus
        return tuple((name, f"{vgpu.profile} on {vgpu.gpu}") for name, vgpu in vgpus.items())

    @query
    def instance_profiles(self, gpu: str) -> tuple[tuple[str, str], ...]:
        """Return a GPU's GPU instance profiles and how many of each there can be, read from NVML alone."""
        gpu_info = self._ports.nvml.gpu(normalize_pci(gpu) or gpu)
        profiles = gpu_info.mig.profiles if gpu_info is not None and gpu_info.mig is not None else ()
        return tuple((p.name, f"at most {p.max_instances}") for p in profiles)


def check_names() -> tuple[tuple[str, str], ...]:
    """Return the id and the title of each of the doctor's checks."""
    from vgpuctl import doctor

    return tuple((check.id, check.title) for check in doctor.CHECKS)
