# SPDX-License-Identifier: Apache-2.0
"""Moves between two simulated hosts that fail, are killed, or meet another program: what both hosts have then."""
