# SPDX-License-Identifier: Apache-2.0
"""What libvirt's hook starts when a VM of vgpuctl starts: it makes the VM's missing vGPUs, or says why not.

libvirt waits for it with the domain locked. So it calls neither libvirt nor NVML, loads nothing beside the standard
library, and has a deadline of its own. VMs that vgpuctl did not make never get here: the shell script before it
leaves first (vgpuctl.plan.installation).
"""
