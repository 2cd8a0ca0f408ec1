# SPDX-License-Identifier: Apache-2.0
"""Checks of a host: what vgpuctl observed -> what is wrong with it. Pure; `operations.diagnose` gathers the input."""
