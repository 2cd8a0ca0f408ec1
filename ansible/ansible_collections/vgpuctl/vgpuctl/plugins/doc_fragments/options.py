# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the documentation says of the modules' options. Made from the program by tests/ansible: do not edit."""

from __future__ import annotations


class ModuleDocFragment:
    """One fragment for each module."""

    VM = r"""
options:
  profile:
    type: list
    elements: str
    description:
      - 'vGPU profile (4C: of any model), with :N for several of it; a list for several vGPUs in one VM (at
        most 16, all or nothing).'
      - 'For example V(A100-4C).'
  gpu:
    type: raw
    description:
      - 'The GPU to use, by address or by model; a list to allow several.'
      - 'Quote an address: YAML reads some as numbers.'
      - 'For example V(0000:3b:00.0).'
  not_gpu:
    type: list
    elements: str
    description:
      - 'A GPU that is not to be used, by address or by model.'
      - 'Quote an address: YAML reads some as numbers.'
      - 'For example V(A16).'
  numa_node:
    type: int
    description:
      - 'Only GPUs of this NUMA node.'
      - 'For example V(0).'
  spread_group:
    type: str
    description:
      - 'VMs of one group are on different GPUs; kept with the VM, so that later ones see it.'
      - 'For example V(exam-1).'
  scheduler:
    type: str
    choices: [best_effort, equal_share, fixed_share]
    description:
      - 'Only GPUs on which NVIDIA''s vGPU scheduler runs with this policy.'
  placement:
    type: str
    choices: [least-waste, depth, breadth, first-fit]
    description:
      - 'Which GPU is taken of those with room. least-waste: where the least room is lost for other profiles;
        depth: the one with the most vGPUs; breadth: the one with the fewest; first-fit: the one with the
        lowest address. Without it: placement: of host.yaml, else least-waste.'
  mode:
    type: str
    choices: [vgpu, sriov, passthrough]
    description:
      - 'vgpu: a profile; sriov: a plain VF of O(gpu); passthrough: all of O(gpu).'
      - 'Without it, V(vgpu).'
  memory:
    type: str
    description:
      - 'Guest memory; a bare number is MiB.'
      - 'Without it, what C(defaults) of host.yaml says, or V(4GiB).'
      - 'For example V(8GiB).'
  vcpus:
    type: int
    description:
      - 'Virtual CPUs.'
      - 'Without it, what C(defaults) of host.yaml says, or V(2).'
      - 'For example V(4).'
  image:
    type: str
    description:
      - 'Base image; the first disk becomes a linked qcow2 clone of it.'
      - 'For example V(/var/lib/libvirt/images/debian.qcow2).'
  disk:
    type: list
    elements: str
    description:
      - 'A new thin disk by size (a bare number is GiB), or an existing one by path.'
      - 'For example V(100GiB).'
  cdrom:
    type: str
    description:
      - 'ISO image to boot from.'
      - 'For example V(/var/lib/libvirt/images/debian.iso).'
  cloud_init:
    type: str
    description:
      - 'User-data with which cloud-init sets the guest up at its first boot.'
      - 'For example V(/root/user-data.yaml).'
  network:
    type: str
    description:
      - 'Libvirt network.'
      - 'Without it, what C(defaults) of host.yaml says, or V(default).'
      - 'For example V(default).'
  os:
    type: str
    choices: [linux, generic, windows11]
    description:
      - 'linux: UEFI where the image can boot it; generic: BIOS unless the image needs UEFI; windows11: UEFI
        with secure boot, a TPM 2.0, and devices that Windows knows without virtio drivers.'
      - 'Without it, what C(defaults) of host.yaml says, or V(linux).'
  storage_pool:
    type: str
    description:
      - 'Libvirt storage pool for new disks.'
      - 'Without it, what C(defaults) of host.yaml says, or V(default).'
      - 'For example V(default).'
  hotplug_slots:
    type: int
    description:
      - 'Spare pcie-root-ports for devices added later.'
      - 'Without it, V(4).'
      - 'For example V(4).'
  pci_window:
    type: str
    description:
      - 'Address space above 4 GiB for the guest''s PCI devices. auto: more than UEFI''s own where the BARs of
        a GPU that is passed through need it; none: UEFI''s own; or a size.'
      - 'Without it, V(auto).'
      - 'For example V(256GiB).'
  vgpu_params:
    type: dict
    description:
      - 'vGPU plugin parameter.'
      - 'For example V(frame_rate_limiter=0).'
  template:
    type: str
    description:
      - 'Domain template, NAME.xml.j2 in /etc/vgpuctl/templates or built in.'
      - 'Without it, V(vm).'
      - 'For example V(vm).'
  reserve:
    type: str
    choices: [always, running]
    description:
      - 'always: the VM keeps the place of its vGPU while it is off; running: only while it runs, so that more
        VMs can be defined than fit at once.'
      - 'Without it, V(always).'
  labels:
    type: dict
    description:
      - 'A label of the VM, to select it by later.'
      - 'For example V(team=cad).'
  owner:
    type: str
    description:
      - 'The person or team that uses the VM.'
      - 'For example V(cad-team).'
  force_console:
    type: bool
    description:
      - 'Pass a GPU through although the host''s console is on it.'
"""

    VGPU = r"""
options:
  name:
    type: str
    required: true
    description:
      - 'The vGPU''s name.'
  profile:
    type: str
    description:
      - 'The vGPU''s profile.'
  gpu:
    type: raw
    description:
      - 'The GPU to use, by address or by model; a list to allow several.'
      - 'Quote an address: YAML reads some as numbers.'
      - 'For example V(0000:3b:00.0).'
  not_gpu:
    type: list
    elements: str
    description:
      - 'A GPU that is not to be used, by address or by model.'
      - 'Quote an address: YAML reads some as numbers.'
      - 'For example V(A16).'
  numa_node:
    type: int
    description:
      - 'Only GPUs of this NUMA node.'
      - 'For example V(0).'
  scheduler:
    type: str
    choices: [best_effort, equal_share, fixed_share]
    description:
      - 'Only GPUs on which NVIDIA''s vGPU scheduler runs with this policy.'
  placement:
    type: str
    choices: [least-waste, depth, breadth, first-fit]
    description:
      - 'Which GPU is taken of those with room. least-waste: where the least room is lost for other profiles;
        depth: the one with the most vGPUs; breadth: the one with the fewest; first-fit: the one with the
        lowest address. Without it: placement: of host.yaml, else least-waste.'
  vgpu_params:
    type: dict
    description:
      - 'vGPU plugin parameter.'
      - 'For example V(frame_rate_limiter=0).'
  state:
    type: str
    choices: [present, absent]
    default: present
    description:
      - 'present: create it if it is missing; absent: remove it if it exists.'
"""

    GPU_MODE = r"""
options:
  gpu:
    type: raw
    required: true
    description:
      - 'The GPU, by address or by model.'
      - 'Quote an address: YAML reads some as numbers.'
      - 'For example V(0000:3b:00.0).'
  mode:
    type: str
    choices: [vgpu, sriov, passthrough, unmanaged]
    required: true
    description:
      - 'What the GPU is set up for; unmanaged: vgpuctl places nothing there.'
  vfs:
    type: int
    description:
      - 'How many plain virtual functions.'
  drain:
    type: bool
    default: false
    description:
      - 'Shut running VMs down first, at most O(wait) seconds, and start them again.'
"""

    SCHEDULER = r"""
options:
  gpu:
    type: raw
    required: true
    description:
      - 'The GPU, by address or by model.'
      - 'Quote an address: YAML reads some as numbers.'
      - 'For example V(0000:3b:00.0).'
  policy:
    type: str
    choices: [best_effort, equal_share, fixed_share]
    required: true
    description:
      - 'How the GPU''s time is divided.'
  time_slice:
    type: int
    description:
      - 'Strict round robin, with time slices of MS milliseconds.'
  frequency:
    type: int
    description:
      - 'Adaptive round robin, with HZ time slices a second.'
  averaging_factor:
    type: int
    description:
      - 'Adaptive round robin: the number of time slices over which a VM''s time is averaged.'
  via:
    type: str
    choices: [auto, nvml, modprobe]
    default: auto
    description:
      - 'nvml: now; modprobe: when the driver is loaded next; auto: nvml if possible.'
  drain:
    type: bool
    default: false
    description:
      - 'Shut running VMs down first, at most O(wait) seconds, remove all vGPUs, and restore them afterwards.'
"""
