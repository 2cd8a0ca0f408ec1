# SPDX-License-Identifier: Apache-2.0
"""Other hosts over SSH: which they are, how one logs in there, and the vgpuctl that is run there.

It knows nothing of GPUs and VMs: what comes back is a document that the vgpuctl there made. paramiko is imported
in `ssh` alone.
"""
