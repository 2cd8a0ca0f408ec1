# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The documentation of the modules' options. Made from the program by tests/ansible: do not edit."""

from __future__ import annotations


class ModuleDocFragment:
    """One fragment for each module."""

    VM = r"""
options:
  profile:
    type: list
    elements: str
    description:
      - 'vGPU profile (4C matches any GPU model); append :N for N vGPUs of it; a list to mix profiles (at most
        16 vGPUs in a VM; the VM gets all of them or none).'
      - 'For example V(A100-4C).'
  gpu:
    type: raw
    description:
      - 'Use this GPU, by address, UUID or model; a list to allow several, or to pass several through.'
      - 'Quote an address: YAML reads some as numbers.'
      - 'For example V(0000:3b:00.0).'
  gpus:
    type: int
    description:
      - 'How many whole GPUs (O(mode) passthrough) or plain VFs (O(mode) sriov) the VM gets, all of them or
        none; whole GPUs near each other are preferred: one PCIe switch, then one NUMA node.'
      - 'For example V(2).'
  not_gpu:
    type: list
    elements: str
    description:
      - 'Do not use this GPU, by address, UUID or model.'
      - 'Quote an address: YAML reads some as numbers.'
      - 'For example V(A16).'
  numa_node:
    type: int
    description:
      - 'Use only GPUs of this NUMA node.'
      - 'For example V(0).'
  spread_group:
    type: str
    description:
      - 'Place the VMs of this group on different GPUs; the VM keeps the group, so later VMs respect it.'
      - 'For example V(exam-1).'
  scheduler:
    type: str
    choices: [best_effort, equal_share, fixed_share]
    description:
      - 'Use only GPUs whose NVIDIA vGPU scheduler has this policy.'
  placement:
    type: str
    choices: [least-waste, depth, breadth, first-fit, binpack, spread]
    description:
      - 'How to choose among the GPUs with room. least-waste: the GPU where other profiles lose the least
        room; depth or binpack: the GPU with the most vGPUs; breadth or spread: the GPU with the fewest;
        first-fit: the lowest address. Default: placement: of host.yaml, else least-waste.'
  mode:
    type: str
    choices: [vgpu, sriov, passthrough, virtio-gpu]
    description:
      - 'vgpu: vGPUs of O(profile); sriov: plain VFs, of O(gpu); passthrough: whole GPUs, every address of
        O(gpu) or O(gpus) N; virtio-gpu: QEMU draws for the guest on a GPU that it shares with all others, and
        gives it none.'
      - 'Without it, V(vgpu).'
  memory:
    type: str
    description:
      - 'Guest memory; 8G is 8GiB, 8 is 8MiB.'
      - 'Without it, what C(defaults) of host.yaml says, or V(4GiB).'
      - 'For example V(8GiB).'
  vcpus:
    type: int
    description:
      - 'Number of virtual CPUs.'
      - 'Without it, what C(defaults) of host.yaml says, or V(2).'
      - 'For example V(4).'
  hugepages:
    type: str
    description:
      - 'Back the guest''s memory with huge pages that the host has reserved: 2MiB (without a value), 1GiB, or
        none.'
      - 'Without it, V(none).'
      - 'For example V(1GiB).'
  cpu_pin:
    type: str
    description:
      - 'Run the guest only on these CPUs of the host, and bind its memory to their NUMA nodes. auto (without
        a value): the CPUs of the GPU''s NUMA node; or a list of CPUs; or none.'
      - 'Without it, V(none).'
      - 'For example V(8-15,24-31).'
  image:
    type: str
    description:
      - 'Base image; the first disk becomes a linked clone of it, or a full copy in a logical storage pool.'
      - 'For example V(/var/lib/libvirt/images/debian.qcow2).'
  disk:
    type: list
    elements: str
    description:
      - 'A new disk by size (a bare number is GiB), or an existing one by path.'
      - 'For example V(100GiB).'
  cdrom:
    type: str
    description:
      - 'ISO image to boot from.'
      - 'For example V(/var/lib/libvirt/images/debian.iso).'
  cloud_init:
    type: str
    description:
      - 'User-data file; cloud-init configures the guest with it at its first boot.'
      - 'For example V(/root/user-data.yaml).'
  network_config:
    type: str
    description:
      - 'Network configuration for cloud-init, version 1 or 2, for instance with a static address.'
      - 'For example V(/root/network-config.yaml).'
  guest_driver:
    type: str
    description:
      - 'NVIDIA''s driver for the guest, a file of the host, which is installed there from a disc; for many
        VMs, better in the image.'
      - 'Without it, V(none).'
      - 'For example V(/srv/drivers/NVIDIA-Linux-x86_64-580.159.03-grid.run).'
  guest_sharing:
    type: str
    description:
      - 'How the programs of the guest share its GPU, which cloud-init sets up there. mps: NVIDIA''s MPS runs
        them at the same time, each with at most threads=PERCENT of the GPU''s threads and memory=SIZE of its
        memory; mps:N, time-slicing:N: the guest is a node of Kubernetes, and N pods share each GPU.'
      - 'Without it, V(none).'
      - 'For example V(mps,threads=25,memory=4GiB).'
  license:
    type: str
    description:
      - 'The guest''s license for NVIDIA''s vGPU software, which the seed brings: a folder in
        /etc/vgpuctl/licenses with the token.'
      - 'Without it, V(none).'
      - 'For example V(cad).'
  k8s_join:
    type: str
    description:
      - 'The guest joins this cluster of Kubernetes as a node, which cloud-init has it do: the name of a file
        in /etc/vgpuctl/clusters with a join token.'
      - 'Without it, V(none).'
      - 'For example V(lab).'
  domain_join:
    type: str
    description:
      - 'The guest, which has Windows, joins this domain while it is set up from an image: the name of an
        entry in /etc/vgpuctl/domain-joins with blobs of djoin /provision, or of a program that prints them.'
      - 'Without it, V(none).'
      - 'For example V(corp).'
  guest_helper:
    type: bool
    description:
      - 'Bring vgpuctl''s helper into the guest by its seed: it reports who is logged on and which driver
        runs.'
  off_after_setup:
    type: bool
    description:
      - 'The guest shuts down once it has been set up for the first time, so that prepare-vm can keep its
        disk.'
  networks:
    type: raw
    description:
      - 'A network card: a libvirt network by name (or network=NAME), or bridge=BRIDGE of the host with vlan=N
        if it is tagged; then model=virtio or model=e1000e, and mac=ADDRESS; none: no network card.'
      - 'Without it, what C(defaults) of host.yaml says, or V(default).'
      - 'For example V(bridge=br0,vlan=30).'
  display:
    type: bool
    description:
      - 'Show the first vGPU''s screen, from the firmware on, in the VM''s VNC console; the VM gets no other
        video card.'
  os:
    type: str
    choices: [linux, generic, windows11]
    description:
      - 'linux: UEFI if the image can boot with it; generic: BIOS unless the image needs UEFI; windows11: UEFI
        with secure boot, a TPM 2.0, and devices that Windows supports without virtio drivers.'
      - 'Without it, what C(defaults) of host.yaml says, or V(linux).'
  storage_pool:
    type: str
    description:
      - 'Libvirt storage pool for new disks: a directory, or a logical one (LVM).'
      - 'Without it, what C(defaults) of host.yaml says, or V(default).'
      - 'For example V(default).'
  hotplug_slots:
    type: int
    description:
      - 'Number of spare PCIe root ports for devices that you attach later.'
      - 'Without it, V(4).'
      - 'For example V(4).'
  pci_window:
    type: str
    description:
      - 'Address space above 4 GiB for the guest''s PCI devices. auto: larger than UEFI''s default if the BARs
        of a GPU that is passed through need it; none: UEFI''s default; or a size.'
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
      - 'Domain template: NAME.xml.j2 in /etc/vgpuctl/templates, or a built-in one.'
      - 'Without it, V(vm).'
      - 'For example V(vm).'
  reserve:
    type: str
    choices: [always, running]
    description:
      - 'always: the VM keeps the place of its vGPU while it is off; running: it has a place only while it
        runs, so you can define more VMs than fit at once.'
      - 'Without it, V(always).'
  autostart:
    type: str
    choices: [disabled, enabled, last-state]
    description:
      - 'Whether the host agent starts the VM after a boot of the host: disabled, enabled, or last-state: if
        the last request was to start it.'
      - 'Without it, what C(defaults) of host.yaml says, or V(disabled).'
  autostart_storage:
    type: str
    choices: [local, any]
    description:
      - 'local: the host agent starts no VM with a disk that another host may use, too; any: it does.'
      - 'Without it, what C(defaults) of host.yaml says, or V(local).'
  start_order:
    type: int
    description:
      - 'The host agent starts VMs with a lower number first.'
      - 'Without it, what C(defaults) of host.yaml says, or V(100).'
      - 'For example V(10).'
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
      - 'Pass through a GPU even if it is the host''s console.'
  force_reset:
    type: bool
    description:
      - 'Pass through a GPU even if its reset breaks it until the host boots.'
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
      - 'Use this GPU, by address, UUID or model; a list to allow several, or to pass several through.'
      - 'Quote an address: YAML reads some as numbers.'
      - 'For example V(0000:3b:00.0).'
  not_gpu:
    type: list
    elements: str
    description:
      - 'Do not use this GPU, by address, UUID or model.'
      - 'Quote an address: YAML reads some as numbers.'
      - 'For example V(A16).'
  numa_node:
    type: int
    description:
      - 'Use only GPUs of this NUMA node.'
      - 'For example V(0).'
  scheduler:
    type: str
    choices: [best_effort, equal_share, fixed_share]
    description:
      - 'Use only GPUs whose NVIDIA vGPU scheduler has this policy.'
  placement:
    type: str
    choices: [least-waste, depth, breadth, first-fit, binpack, spread]
    description:
      - 'How to choose among the GPUs with room. least-waste: the GPU where other profiles lose the least
        room; depth or binpack: the GPU with the most vGPUs; breadth or spread: the GPU with the fewest;
        first-fit: the lowest address. Default: placement: of host.yaml, else least-waste.'
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
    description:
      - 'The GPU, by address or by model. Specify either O(gpu) or O(all).'
      - 'Quote an address: YAML reads some as numbers.'
      - 'For example V(0000:3b:00.0).'
  all:
    type: bool
    description:
      - 'Every GPU of the host.'
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
  vf_memory:
    type: str
    description:
      - 'GPU memory of each plain virtual function; 4GiB, a bare number is MiB.'
  compute_partition:
    type: str
    choices: [SPX, DPX, QPX, CPX]
    description:
      - 'The compute partition mode of an AMD GPU.'
  memory_partition:
    type: str
    choices: [NPS1, NPS2, NPS4, NPS8]
    description:
      - 'The memory partition mode of an AMD GPU.'
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
    description:
      - 'The GPU, by address or by model. Specify either O(gpu) or O(all).'
      - 'Quote an address: YAML reads some as numbers.'
      - 'For example V(0000:3b:00.0).'
  all:
    type: bool
    description:
      - 'Every GPU of the host.'
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
  preempt_timeout:
    type: int
    description:
      - 'How many microseconds a VM may keep the GPU after its slice (Intel).'
  drain:
    type: bool
    default: false
    description:
      - 'Shut running VMs down first, at most O(wait) seconds, remove all vGPUs, and restore them afterwards.'
"""
