"""The lab: a virtual GPU host with a real kernel, libvirtd and KVM guests, for tests that a simulator cannot cover.

L1 is the machine that runs pytest. L2 is the virtual GPU host: a QEMU guest that this package builds. L3 are the
VMs that libvirt starts inside L2. vgpuctl itself uses nothing from this package.
"""
