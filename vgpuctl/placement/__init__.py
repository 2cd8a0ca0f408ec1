# SPDX-License-Identifier: Apache-2.0
"""Which GPU gets the next vGPU: restrictions, policies, and questions about many GPUs at once. Pure."""
