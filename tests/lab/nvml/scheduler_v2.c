/* SPDX-License-Identifier: Apache-2.0 */
/* The vGPU scheduler, version 2: by engine, adaptive slices alone. Not in the build for older drivers. */
#include <string.h>

#include "scheduler.h"

#define BEST_EFFORT	1
#define ADAPTIVE	2
#define NVENC0		3

struct scheduler_v2 {
	u32 engine, policy, factor, last;	/* last: slice in ns when read, Hz when set */
};

/* Engines that encode have best effort alone. */
static int show(struct card *device, struct scheduler_v2 *to)
{
	struct state now;
	u32 engine = to ? to->engine : 0;
	int ret = read_card(device, &now);

	if (ret)
		return ret;
	if (engine < GRAPHICS || engine > NVENC0)
		return INVALID_ARGUMENT;
	*to = (struct scheduler_v2) { .engine = engine, .policy = BEST_EFFORT };
	if (engine == GRAPHICS) {
		to->policy = now.scheduler[0];
		to->factor = now.scheduler[2];
		to->last = now.scheduler[3];
	}
	return SUCCESS;
}

int nvmlDeviceGetVgpuSchedulerState_v2(struct card *device,
				       struct scheduler_v2 *to)
{
	return show(device, to);
}

int nvmlDeviceSetVgpuSchedulerState_v2(struct card *device,
				       const struct scheduler_v2 *to)
{
	if (!to || to->engine != GRAPHICS)
		return INVALID_ARGUMENT;
	return set_scheduler(device, to->policy, ADAPTIVE, to->factor, to->last, 0);
}

struct entry {
	u64 at, total, run;
	u32 runlist;
	u64 target, preempted;
	u32 weight;
};

struct log {
	struct scheduler_v2 now;
	u32 count;
	struct entry entries[LOG_ENTRIES];
};

_Static_assert(sizeof(struct log) == 11224, "as nvml.h has it");

int nvmlDeviceGetVgpuSchedulerLog_v2(struct card *device, struct log *to)
{
	struct scheduler_v2 now;
	int ret;

	if (!to)
		return INVALID_ARGUMENT;
	now = to->now;
	ret = show(device, &now);
	if (ret)
		return ret;
	memset(to, 0, sizeof(*to));
	to->now = now;
	return SUCCESS;
}
