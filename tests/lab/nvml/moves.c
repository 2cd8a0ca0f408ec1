/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The move of a vGPU to another host: its description, and whether a GPU takes
 * it. The opaque part is the card's model. No driver of the lab moves anything.
 */
#include <string.h>

#include "lab.h"

#define LIVE_AND_SAVED		(8 | 2)
#define LIMIT_HOST_DRIVER	1
#define LIMIT_GPU		4

int nvmlVgpuInstanceGetType(u32 instance, u32 *type);
int nvmlDeviceGetActiveVgpus(struct card *device, u32 *count, u32 *instances);

struct vgpu_metadata {
	u32 version, revision, guest_state;
	char guest_driver[80], host_driver[80];
	u32 reserved[6], caps, guest_version, size;
	char opaque[sizeof(((struct state *)0)->model)];
};

struct gpu_metadata {
	u32 version, revision;
	char host_driver[80];
	u32 caps, reserved[5], range[2], size;
	char opaque[sizeof(((struct state *)0)->model)];
};

_Static_assert(__builtin_offsetof(struct vgpu_metadata, opaque) == 208, "as nvml.h has it");
_Static_assert(__builtin_offsetof(struct gpu_metadata, opaque) == 124, "as nvml.h has it");

struct wanted {
	u32 instance, type;
	char model[sizeof(((struct state *)0)->model)];
	u64 framebuffer_mib;
};

static int copy_model(const struct card *card, const struct state *now, void *to)
{
	struct wanted *wanted = to;
	const struct type *type = type_in(now, wanted->type);
	u32 i;

	(void)card;
	for (i = 0; i < now->nr_vgpus; i++)
		if (now->vgpus[i].instance == wanted->instance) {
			strcpy(wanted->model, now->model);
			wanted->framebuffer_mib = type ? type->framebuffer_mib : 0;
			return 1;
		}
	return 0;
}

static int find_model(u32 instance, struct wanted *wanted)
{
	int ret = nvmlVgpuInstanceGetType(instance, &wanted->type);

	wanted->instance = instance;
	if (ret)
		return ret;
	return each_card(copy_model, wanted) ? SUCCESS : NOT_FOUND;
}

#ifndef OLD
struct state_size {
	u32 version;
	u64 size;
};

int nvmlVgpuInstanceGetRuntimeStateSize(u32 instance, struct state_size *to)
{
	struct wanted wanted;
	int ret = find_model(instance, &wanted);

	if (ret || !to)
		return ret ? ret : INVALID_ARGUMENT;
	if (to->version != VERSION_OF(struct state_size, 1))
		return ARGUMENT_VERSION_MISMATCH;
	to->size = wanted.framebuffer_mib / 4 << 20;
	return SUCCESS;
}
#endif

/* Answers calls that are asked twice: how large, and what. */
static int give_blob(const void *blob, u32 length, void *to, u32 *size)
{
	u32 had = *size;

	*size = length;
	if (!to || had < length)
		return INSUFFICIENT_SIZE;
	memcpy(to, blob, length);
	return SUCCESS;
}

int nvmlVgpuInstanceGetMetadata(u32 instance, struct vgpu_metadata *to, u32 *size)
{
	struct vgpu_metadata blob = { .version = 3, .revision = 1, .size = sizeof(blob.opaque) };
	struct wanted wanted;
	int ret = find_model(instance, &wanted);

	if (ret || !size)
		return ret ? ret : INVALID_ARGUMENT;
	strcpy(blob.host_driver, VERSION);
	strcpy(blob.opaque, wanted.model);
	return give_blob(&blob, sizeof(blob), to, size);
}

int nvmlDeviceGetVgpuMetadata(struct card *device, struct gpu_metadata *to, u32 *size)
{
	struct gpu_metadata blob = { .version = 3, .revision = 1, .size = sizeof(blob.opaque) };
	struct state now;
	int ret = read_card(device, &now);

	if (ret || !size)
		return ret ? ret : INVALID_ARGUMENT;
	strcpy(blob.host_driver, VERSION);
	strcpy(blob.opaque, now.model);
	return give_blob(&blob, sizeof(blob), to, size);
}

struct compatibility {
	u32 states, limits;
};

int nvmlGetVgpuCompatibility(struct vgpu_metadata *vgpu, struct gpu_metadata *gpu,
			     struct compatibility *to)
{
	if (!opened())
		return UNINITIALIZED;
	if (!vgpu || !gpu || !to || vgpu->size != sizeof(vgpu->opaque))
		return INVALID_ARGUMENT;
	to->limits = 0;
	if (strncmp(vgpu->host_driver, gpu->host_driver, sizeof("580") - 1))
		to->limits |= LIMIT_HOST_DRIVER;
	if (strncmp(vgpu->opaque, gpu->opaque, sizeof(gpu->opaque)))
		to->limits |= LIMIT_GPU;
	to->states = to->limits ? 0 : LIVE_AND_SAVED;
	return SUCCESS;
}
