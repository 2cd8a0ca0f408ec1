/* SPDX-License-Identifier: Apache-2.0 */
/* Structs of NVML's scheduler calls that both versions have, and how one is set. */
#ifndef SCHEDULER_H
#define SCHEDULER_H

#include "lab.h"

#define GRAPHICS	1
#define LOG_ENTRIES	200

/* Numbers as the module takes them; 0 is the driver's choice. */
int set_scheduler(struct card *device, u32 policy, u32 mode, u32 factor, u32 hz,
		  u32 slice_ns);

#endif
