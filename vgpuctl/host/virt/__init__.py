# SPDX-License-Identifier: Apache-2.0
"""Implements the ports to libvirt: one connection for domains, networks and storage."""
