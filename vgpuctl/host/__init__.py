# SPDX-License-Identifier: Apache-2.0
"""Implements the ports for the real host."""
