# SPDX-License-Identifier: Apache-2.0
"""Tests of vgpuctl.remote that need no network; tests/remote has those with a real sshd."""
