# SPDX-License-Identifier: Apache-2.0
"""What is known about the use of GPUs and about ways to share them. Pure: snapshots and samples are handed in."""
