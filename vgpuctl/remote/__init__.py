# SPDX-License-Identifier: Apache-2.0
"""Other hosts over SSH: their addresses, the login, and the vgpuctl that runs there.

This package does not depend on GPUs and VMs: a reply is a document from the remote vgpuctl. Only `ssh` imports
paramiko.
"""
