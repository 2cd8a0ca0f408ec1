# SPDX-License-Identifier: Apache-2.0
"""How a GPU can be divided: what is on it, how many more vGPUs fit, where, and why no more. Pure."""
