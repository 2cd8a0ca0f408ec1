# SPDX-License-Identifier: Apache-2.0
"""Trials in which another program starts, destroys or undefines a VM before a port call of a vgpuctl command."""
