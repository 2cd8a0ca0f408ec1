"""The lab: a virtual GPU host with a real kernel, libvirtd and KVM guests, where no simulator is enough.

L1 is the machine that runs pytest. L2 is the virtual GPU host, a QEMU guest made by this package. L3 are the
VMs that libvirt starts inside L2. Nothing here is used by vgpuctl itself.
"""
