# SPDX-License-Identifier: Apache-2.0
"""What vgpuctl monitoring prints, with the real promtool, Prometheus and Alertmanager, on loopback."""
