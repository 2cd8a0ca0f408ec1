# SPDX-License-Identifier: Apache-2.0
"""Libvirt domain XML: render, parse, and the promise in its metadata. Pure."""
