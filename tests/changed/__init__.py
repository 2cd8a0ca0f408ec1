# SPDX-License-Identifier: Apache-2.0
"""Trials of commands on a host that changed under its VM: hardware, kernel, libvirt, other programs."""
