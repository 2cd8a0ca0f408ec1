# SPDX-License-Identifier: Apache-2.0
"""Roots in which scripts for guests run, and programs of NVIDIA's that accept only the right order."""
