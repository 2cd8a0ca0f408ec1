# SPDX-License-Identifier: Apache-2.0
"""libvirt behind the seams: one connection, used for domains, networks and storage."""
