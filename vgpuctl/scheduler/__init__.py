# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's vGPU scheduler, pure: the registry dword, the limits of a driver, modprobe files, time shares."""
