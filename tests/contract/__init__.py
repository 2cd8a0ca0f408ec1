# SPDX-License-Identifier: Apache-2.0
"""The same assertions on the simulator and, by tests/lab/test_contract.py, on the lab's real kernel and libvirt."""
