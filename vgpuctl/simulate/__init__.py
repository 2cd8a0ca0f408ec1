# SPDX-License-Identifier: Apache-2.0
"""Capacity planning: replays requests for vGPUs on GPUs that are only counted. The command `simulate`; all pure."""
