# SPDX-License-Identifier: Apache-2.0
"""Where the next vGPU goes, in numbers: kinds of GPUs, their states, and policies that choose among them. Pure."""
