# SPDX-License-Identifier: Apache-2.0
"""Tests that run on the simulator and, through tests/lab/test_contract.py, on the lab's real kernel and libvirt."""
