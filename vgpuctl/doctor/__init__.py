# SPDX-License-Identifier: Apache-2.0
"""Checks of a host: what vgpuctl observed -> what is wrong with it. Pure; `engine.diagnose` gathers the input."""
