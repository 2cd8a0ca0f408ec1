# SPDX-License-Identifier: Apache-2.0
"""Another program starts, destroys or undefines a VM while vgpuctl works on it, before each call of a port."""
