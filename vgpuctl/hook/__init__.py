# SPDX-License-Identifier: Apache-2.0
"""The program that libvirt's hook runs when a managed VM starts: it creates missing vGPUs, or reports why it cannot.

libvirt waits for the hook with the domain locked. So the program calls neither libvirt nor NVML, loads nothing besides
the standard library, and has its own deadline. It never runs for VMs that vgpuctl did not create: the shell script that
starts it exits first for those (vgpuctl.operations.plans.installation).
"""
