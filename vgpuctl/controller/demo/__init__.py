# SPDX-License-Identifier: Apache-2.0
"""A demonstration: the real controller with the real agents of simulated hosts, without root and without GPUs."""
