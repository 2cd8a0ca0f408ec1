# SPDX-License-Identifier: Apache-2.0
"""vgpuctl gives virtual machines on a KVM host a slice of a GPU or a whole GPU."""

__version__ = "0.1.0"
