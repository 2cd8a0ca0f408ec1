/* SPDX-License-Identifier: Apache-2.0 */
/* The vGPU scheduler, version 1: limits, state, setting it, and its log. */
#include <stdio.h>
#include <string.h>

#include "scheduler.h"

#define STRICT	1

struct capabilities {
	u32 policies[3];
	u32 most_slice, least_slice, adaptive, most_hz, least_hz;
	u32 most_factor, least_factor;
};

int nvmlDeviceGetVgpuSchedulerCapabilities(struct card *device,
					   struct capabilities *to)
{
	struct state now;
	const u32 *n = now.limits;
	int ret = read_card(device, &now);

	if (ret || !to)
		return ret ? ret : INVALID_ARGUMENT;
	*to = (struct capabilities) {
		.policies = { 1, 2, 3 },
		.least_slice = n[0], .most_slice = n[1],
		.least_hz = n[2], .most_hz = n[3],
		.least_factor = n[4], .most_factor = n[5],
		.adaptive = n[6],
	};
	return SUCCESS;
}

/* Of the union only {slice} is used with strict slices, {factor, slice or Hz} with adaptive ones. */
struct scheduler {
	u32 policy, mode, first, second;
};

static void show(const u32 *now, struct scheduler *to)
{
	to->policy = now[0];
	to->mode = now[1];
	to->first = now[1] == STRICT ? now[3] : now[2];
	to->second = now[1] == STRICT ? 0 : now[3];
}

int nvmlDeviceGetVgpuSchedulerState(struct card *device, struct scheduler *to)
{
	struct state now;
	int ret = read_card(device, &now);

	if (ret || !to)
		return ret ? ret : INVALID_ARGUMENT;
	show(now.scheduler, to);
	return SUCCESS;
}

int set_scheduler(struct card *device, u32 policy, u32 mode, u32 factor, u32 hz,
		  u32 slice_ns)
{
	struct state now;
	char text[80];
	int ret = read_card(device, &now);

	if (ret)
		return ret;
	snprintf(text, sizeof(text), "scheduler %u %u %u %u %u\n", policy, mode,
		 factor, hz, slice_ns);
	return write_card(device, text);
}

int nvmlDeviceSetVgpuSchedulerState(struct card *device,
				    const struct scheduler *to)
{
	if (!to)
		return INVALID_ARGUMENT;
	if (to->mode == STRICT)
		return set_scheduler(device, to->policy, STRICT, 0, 0, to->first);
	return set_scheduler(device, to->policy, to->mode, to->first, to->second, 0);
}

struct entry {
	u64 at, total, run;
	u32 runlist;
	u64 target, preempted;
};

struct log {
	u32 engine;
	struct scheduler now;
	u32 count;
	struct entry entries[LOG_ENTRIES];
};

_Static_assert(sizeof(struct log) == 9624, "as nvml.h has it");

/* No GPU works here, so nothing was ever scheduled. */
int nvmlDeviceGetVgpuSchedulerLog(struct card *device, struct log *to)
{
	struct state now;
	int ret = read_card(device, &now);

	if (ret || !to)
		return ret ? ret : INVALID_ARGUMENT;
	memset(to, 0, sizeof(*to));
	to->engine = GRAPHICS;
	show(now.scheduler, &to->now);
	return SUCCESS;
}
