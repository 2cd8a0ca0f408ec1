# SPDX-License-Identifier: Apache-2.0
"""Libvirt domain XML: render, parse, and the VM's record in its metadata. Pure."""
