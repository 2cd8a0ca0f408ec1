# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's vGPU scheduler, pure: the registry word, what a driver takes, modprobe's files, shares."""
