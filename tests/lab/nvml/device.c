/* SPDX-License-Identifier: Apache-2.0 */
/* A GPU: its handle, name, memory, and what it is for a host of vGPUs. */
#include "lab.h"

#define HOST_VGPU		3
#define NON_SRIOV		0
#define SRIOV			1

static int count_card(const struct card *card, const struct state *now, void *n)
{
	(void)card;
	(void)now;
	++*(u32 *)n;
	return 0;
}

int nvmlDeviceGetCount_v2(u32 *count)
{
	if (!opened())
		return UNINITIALIZED;
	if (!count)
		return INVALID_ARGUMENT;
	*count = 0;
	each_card(count_card, count);
	return SUCCESS;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, struct card **device)
{
	return find_card(bus_id, device);
}

int nvmlDeviceGetName(struct card *device, char *name, u32 size)
{
	struct state now;
	int ret = read_card(device, &now);

	return ret ? ret : give_text(now.model, name, size);
}

struct memory {
	u64 total, free, used;
};

/* What vGPUs have of it is not free, whether a VM runs on them or not. */
int nvmlDeviceGetMemoryInfo(struct card *device, struct memory *memory)
{
	struct state now;
	int ret = read_card(device, &now);
	u32 i, k;

	if (ret || !memory)
		return ret ? ret : INVALID_ARGUMENT;
	memory->total = now.memory_mib << 20;
	memory->used = 0;
	for (i = 0; i < now.nr_vgpus; i++)
		for (k = 0; k < now.nr_types; k++)
			if (now.types[k].id == now.vgpus[i].type)
				memory->used += now.types[k].framebuffer_mib << 20;
	memory->free = memory->total - memory->used;
	return SUCCESS;
}

int nvmlDeviceGetHostVgpuMode(struct card *device, u32 *mode)
{
	struct state now;
	int ret = read_card(device, &now);

	if (ret || !mode)
		return ret ? ret : INVALID_ARGUMENT;
	*mode = now.sriov ? SRIOV : NON_SRIOV;
	return SUCCESS;
}

int nvmlDeviceGetVirtualizationMode(struct card *device, u32 *mode)
{
	struct state now;
	int ret = read_card(device, &now);

	if (ret || !mode)
		return ret ? ret : INVALID_ARGUMENT;
	*mode = HOST_VGPU;
	return SUCCESS;
}

int nvmlDeviceGetArchitecture(struct card *device, u32 *architecture)
{
	struct state now;
	int ret = read_card(device, &now);

	if (ret || !architecture)
		return ret ? ret : INVALID_ARGUMENT;
	*architecture = now.architecture;
	return SUCCESS;
}
