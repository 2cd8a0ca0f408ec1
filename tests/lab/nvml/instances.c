/* SPDX-License-Identifier: Apache-2.0 */
/* Active vGPUs: those that a VM has. Who that is, is in its QEMU's command line. */
#include <stdio.h>
#include <string.h>

#include "lab.h"

#define VM_ID_UUID	1
#define UUID_LENGTH	36

int nvmlDeviceGetActiveVgpus(struct card *device, u32 *count, u32 *instances)
{
	struct state now;
	u32 list[MAX_VGPUS], n = 0, i;
	int ret = read_card(device, &now);

	if (ret)
		return ret;
	for (i = 0; i < now.nr_vgpus; i++)
		if (now.vgpus[i].user)
			list[n++] = now.vgpus[i].instance;
	return give_list(list, n, count, instances);
}

static int copy_vgpu(const struct card *card, const struct state *now, void *to)
{
	struct vgpu *wanted = to;
	u32 i;

	(void)card;
	for (i = 0; i < now->nr_vgpus; i++) {
		if (now->vgpus[i].user &&
		    now->vgpus[i].instance == wanted->instance) {
			*wanted = now->vgpus[i];
			return 1;
		}
	}
	return 0;
}

static int find_vgpu(u32 instance, struct vgpu *vgpu)
{
	vgpu->instance = instance;
	if (!opened())
		return UNINITIALIZED;
	if (!instance)
		return INVALID_ARGUMENT;
	return each_card(copy_vgpu, vgpu) ? SUCCESS : NOT_FOUND;
}

int nvmlVgpuInstanceGetUUID(u32 instance, char *uuid, u32 size)
{
	struct vgpu vgpu;
	int ret = find_vgpu(instance, &vgpu);

	return ret ? ret : give_text(vgpu.uuid, uuid, size);
}

int nvmlVgpuInstanceGetType(u32 instance, u32 *type)
{
	struct vgpu vgpu;
	int ret = find_vgpu(instance, &vgpu);

	if (ret || !type)
		return ret ? ret : INVALID_ARGUMENT;
	*type = vgpu.type;
	return SUCCESS;
}

struct place {
	u32 version, id;
};

int nvmlVgpuInstanceGetPlacementId(u32 instance, struct place *to)
{
	struct vgpu vgpu;
	int ret = find_vgpu(instance, &vgpu);

	if (ret || !to)
		return ret ? ret : INVALID_ARGUMENT;
	if (to->version != VERSION_OF(struct place, 1))
		return ARGUMENT_VERSION_MISMATCH;
	to->id = vgpu.placement;
	return SUCCESS;
}

int nvmlVgpuInstanceGetGpuInstanceId(u32 instance, u32 *id)
{
	struct vgpu vgpu;
	int ret = find_vgpu(instance, &vgpu);

	if (ret || !id)
		return ret ? ret : INVALID_ARGUMENT;
	*id = vgpu.gi;
	return SUCCESS;
}

/* QEMU's own word for its VM: -uuid UUID. */
static int vm_of(int process, char uuid[UUID_LENGTH + 1])
{
	char path[32], words[65536], *word, *next;
	size_t length;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/cmdline", process);
	file = fopen(path, "r");
	if (!file)
		return NOT_FOUND;
	length = fread(words, 1, sizeof(words) - 1, file);
	fclose(file);
	words[length] = '\0';
	for (word = words; word < words + length; word = next) {
		next = word + strlen(word) + 1;
		if (!strcmp(word, "-uuid") && next < words + length) {
			snprintf(uuid, UUID_LENGTH + 1, "%s", next);
			return SUCCESS;
		}
	}
	return NOT_FOUND;
}

int nvmlVgpuInstanceGetVmID(u32 instance, char *id, u32 size, u32 *kind)
{
	struct vgpu vgpu;
	char uuid[UUID_LENGTH + 1];
	int ret = find_vgpu(instance, &vgpu);

	if (!ret)
		ret = vm_of(vgpu.user, uuid);
	if (ret || !kind)
		return ret ? ret : INVALID_ARGUMENT;
	*kind = VM_ID_UUID;
	return give_text(uuid, id, size);
}
