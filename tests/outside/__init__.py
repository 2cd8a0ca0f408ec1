# SPDX-License-Identifier: Apache-2.0
"""Trials in which another program, or another vgpuctl, acts on a VM before a port call of a vgpuctl command."""
