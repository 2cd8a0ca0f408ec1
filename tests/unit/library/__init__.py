# SPDX-License-Identifier: Apache-2.0
"""The library: opening hosts, reading what a program hands in, and the documented examples."""
