# SPDX-License-Identifier: Apache-2.0
"""Rules and placement: how many vGPUs fit where, and why not. Pure."""
