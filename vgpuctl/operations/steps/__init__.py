# SPDX-License-Identifier: Apache-2.0
"""Steps that every backend shares: the domain, its disks, its record and its power state."""
