# SPDX-License-Identifier: Apache-2.0
"""Tests of the programs that run in guests."""
