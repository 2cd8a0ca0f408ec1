/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much is used. No GPU works here, so the file PROC/usage says what to
 * answer, a line each: a name, the number of a vGPU (0: the GPU), a value.
 * Without a line there is a value that is always the same.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "lab.h"

#define MIB		(1ULL << 20)
#define IDLE_MW		40000
#define LIMIT_MW	300000

typedef unsigned short u16;
typedef unsigned char u8;

int nvmlVgpuInstanceGetType(u32 instance, u32 *type);
int nvmlDeviceGetActiveVgpus(struct card *device, u32 *count, u32 *instances);

static u64 told(const char *name, u32 of, u64 otherwise)
{
	FILE *file = fopen(PROC "/usage", "re");
	char line[128], key[32];
	u64 value;
	u32 id;

	if (!file)
		return otherwise;
	while (fgets(line, sizeof(line), file))
		if (sscanf(line, "%31s %u %llu", key, &id, &value) == 3 &&
		    id == of && !strcmp(key, name))
			otherwise = value;
	fclose(file);
	return otherwise;
}

/* Each call about a card begins here. `hang 0 1`: it never ends. */
static int begin(struct card *device, struct state *now)
{
	while (told("hang", 0, 0))
		pause();
	return told("lost", 0, 0) ? GPU_IS_LOST : read_card(device, now);
}

struct memory_v2 {
	u32 version;
	u64 total, reserved, free, used;
};

#ifndef OLD
int nvmlDeviceGetMemoryInfo_v2(struct card *device, struct memory_v2 *to)
{
	struct state now;
	int ret = begin(device, &now);

	if (ret || !to)
		return ret ? ret : INVALID_ARGUMENT;
	if (to->version != VERSION_OF(struct memory_v2, 2))
		return ARGUMENT_VERSION_MISMATCH;
	to->total = now.memory_mib * MIB;
	to->reserved = told("reserved", 0, 512 * MIB);
	to->used = told("memory", 0, 0);
	to->free = to->total - to->reserved - to->used;
	return SUCCESS;
}
#endif

int nvmlDeviceGetUtilizationRates(struct card *device, u32 *to)
{
	struct state now;
	int ret = begin(device, &now);

	if (ret || now.mig[1])
		return ret ? ret : NOT_SUPPORTED;
	to[0] = told("gpu", 0, 7);
	to[1] = told("membusy", 0, 3);
	return SUCCESS;
}

#define ENGINE(name, key)						\
int nvmlDeviceGet##name##Utilization(struct card *device, u32 *to,	\
				     u32 *period_us)			\
{									\
	struct state now;						\
	int ret = begin(device, &now);					\
									\
	if (ret || now.mig[1])						\
		return ret ? ret : NOT_SUPPORTED;			\
	*to = told(key, 0, 0);						\
	*period_us = 167000;						\
	return SUCCESS;							\
}
ENGINE(Encoder, "encoder")
ENGINE(Decoder, "decoder")

/* A number of a card: its type in nvml.h, its key, and what it is without a line. */
#define NUMBER(name, type, key, otherwise)				\
int nvmlDeviceGet##name(struct card *device, type *to)			\
{									\
	struct state now;						\
	int ret = begin(device, &now);					\
									\
	if (!ret)							\
		*to = told(key, 0, otherwise);				\
	return ret;							\
}
NUMBER(PowerUsage, u32, "power", IDLE_MW)
NUMBER(EnforcedPowerLimit, u32, "limit", LIMIT_MW)
NUMBER(TotalEnergyConsumption, u64, "energy", 1000)
NUMBER(CurrentClocksEventReasons, u64, "clocks", 1)
NUMBER(PcieReplayCounter, u32, "replays", 0)
NUMBER(CurrPcieLinkWidth, u32, "width", 16)

int nvmlDeviceGetTemperature(struct card *device, u32 sensor, u32 *to)
{
	struct state now;
	int ret = begin(device, &now);

	if (ret || sensor)
		return ret ? ret : INVALID_ARGUMENT;
	*to = told("temperature", 0, 41);
	return SUCCESS;
}

int nvmlDeviceGetClockInfo(struct card *device, u32 clock, u32 *mhz)
{
	struct state now;
	int ret = begin(device, &now);

	if (ret || clock > 3)
		return ret ? ret : INVALID_ARGUMENT;
	*mhz = told("mhz", 0, 1410);
	return SUCCESS;
}

int nvmlDeviceGetTotalEccErrors(struct card *device, u32 kind, u32 counter,
				u64 *to)
{
	struct state now;
	int ret = begin(device, &now);

	if (ret || kind > 1 || counter > 1)
		return ret ? ret : INVALID_ARGUMENT;
	*to = told(kind ? "uncorrected" : "corrected", 0, 0);
	return SUCCESS;
}

int nvmlDeviceGetRemappedRows(struct card *device, u32 *corrected,
			      u32 *uncorrected, u32 *pending, u32 *failed)
{
	struct state now;
	int ret = begin(device, &now);

	if (ret)
		return ret;
	*corrected = *uncorrected = 0;
	*pending = told("remapping", 0, 0);
	*failed = told("unmapped", 0, 0);
	return SUCCESS;
}

#define TEXT(name, text)						\
int nvmlDeviceGet##name(struct card *device, char *to, u32 size)	\
{									\
	struct state now;						\
	int ret = begin(device, &now);					\
									\
	return ret ? ret : give_text(text, to, size);			\
}
TEXT(UUID, "GPU-00000000-1111-2222-3333-444444444444")
TEXT(Serial, "1320000000001")
TEXT(VbiosVersion, "92.00.25.00.08")

/* ------------------------------------------------------------------ vGPUs */

int nvmlVgpuTypeGetFbReservation(u32 id, u64 *to)
{
	struct type type;
	int ret = find_type(id, &type);

	if (!ret)
		*to = told("reservation", 0, 128 * MIB);
	return ret;
}

int nvmlVgpuInstanceGetFbUsage(u32 instance, u64 *to)
{
	u32 type;
	int ret = nvmlVgpuInstanceGetType(instance, &type);

	if (!ret)
		*to = told("framebuffer", instance, 1024 * MIB);
	return ret;
}

int nvmlVgpuInstanceGetFrameRateLimit(u32 instance, u32 *to)
{
	u32 type;
	int ret = nvmlVgpuInstanceGetType(instance, &type);

	if (!ret)
		*to = told("framelimit", instance, 60);
	return ret;
}

int nvmlVgpuInstanceGetEncoderStats(u32 instance, u32 *sessions, u32 *fps,
				    u32 *latency_us)
{
	u32 type;
	int ret = nvmlVgpuInstanceGetType(instance, &type);

	if (ret)
		return ret;
	*sessions = told("sessions", instance, 0);
	*fps = told("fps", instance, 0);
	*latency_us = told("latency", instance, 0);
	return SUCCESS;
}

struct capture {
	u32 sessions, fps, latency_us;
};

int nvmlVgpuInstanceGetFBCStats(u32 instance, struct capture *to)
{
	return nvmlVgpuInstanceGetEncoderStats(instance, &to->sessions,
					       &to->fps, &to->latency_us);
}

/* No driver of NVIDIA's runs in the guests of the lab; `guest` tells otherwise. */
int nvmlVgpuInstanceGetVmDriverVersion(u32 instance, char *version, u32 size)
{
	const char *text = told("guest", instance, 0) ? "580.159.03" : "Not Available";
	u32 type;
	int ret = nvmlVgpuInstanceGetType(instance, &type);

	return ret ? ret : give_text(text, version, size);
}

struct license {
	u8 licensed;
	struct {
		u32 year;
		u16 month, day, hour, minute, second;
		u8 status;
	} expiry;
	u32 state;
};

_Static_assert(sizeof(struct license) == 24, "as nvml.h has it");

int nvmlVgpuInstanceGetLicenseInfo_v2(u32 instance, struct license *to)
{
	u32 type;
	int ret = nvmlVgpuInstanceGetType(instance, &type);

	if (ret)
		return ret;
	if (told("nodriver", instance, 0))
		return DRIVER_NOT_LOADED;
	memset(to, 0, sizeof(*to));
	to->state = told("license", instance, 5);
	to->licensed = to->state == 5;
	to->expiry.year = 2027;
	to->expiry.month = to->expiry.day = 1;
	to->expiry.status = told("expiry", instance, 2);
	return SUCCESS;
}

union value {
	u32 number;
	u64 space;
};

struct sample_v1 {
	u64 time;
	u32 instance;
	union value sm, mem, enc, dec, jpg, ofa;
};

struct samples_v1 {
	u32 version, type, count;
	u64 last;
	struct sample_v1 *list;
};

struct sample {
	u32 instance;
	u64 time;
	union value sm, mem, enc, dec;
};

_Static_assert(sizeof(struct samples_v1) == 32, "as nvml.h has it");
_Static_assert(sizeof(struct sample_v1) == 64, "as nvml.h has it");
_Static_assert(sizeof(struct sample) == 48, "as nvml.h has it");

static struct sample_v1 sample_of(u32 instance)
{
	return (struct sample_v1) {
		.time = told("time", 0, 1000), .instance = instance,
		.sm = { told("sm", instance, 10) }, .mem = { told("mem", instance, 5) },
		.enc = { told("enc", instance, 2) }, .dec = { 1 },
	};
}

/* Returns how many VMs use, or an error: NOT_FOUND without a sample since. */
static int users(struct card *device, u64 last, u32 *list, u32 *count)
{
	struct state now;
	int ret = begin(device, &now);

	*count = MAX_VGPUS;
	if (!ret)
		ret = nvmlDeviceGetActiveVgpus(device, count, list);
	if (!ret && now.mig[1])
		ret = NOT_SUPPORTED;
	return !ret && *count && last >= told("time", 0, 1000) ? NOT_FOUND : ret;
}

#ifndef OLD
int nvmlDeviceGetVgpuInstancesUtilizationInfo(struct card *device,
					      struct samples_v1 *to)
{
	u32 list[MAX_VGPUS], count, room = to->count, i;
	int ret = users(device, to->last, list, &count);

	if (ret)
		return ret;
	if (to->version != VERSION_OF(struct samples_v1, 1))
		return ARGUMENT_VERSION_MISMATCH;
	to->count = count;
	if (count && (!to->list || room < count))
		return INSUFFICIENT_SIZE;
	for (i = 0; i < count; i++)
		to->list[i] = sample_of(list[i]);
	return SUCCESS;
}
#endif

int nvmlDeviceGetVgpuUtilization(struct card *device, u64 last, u32 *type,
				 u32 *room, struct sample *to)
{
	u32 list[MAX_VGPUS], count, had = *room, i;
	int ret = users(device, last, list, &count);

	if (ret)
		return ret;
	*type = 1;
	*room = count;
	if (count && (!to || had < count))
		return INSUFFICIENT_SIZE;
	for (i = 0; i < count; i++) {
		struct sample_v1 s = sample_of(list[i]);

		to[i] = (struct sample) { s.instance, s.time, s.sm, s.mem,
					  s.enc, s.dec };
	}
	return SUCCESS;
}

struct process {
	char name[64];
	u64 time;
	u32 instance, pid, sm, mem, enc, dec, jpg, ofa;
};

struct processes {
	u32 version, count;
	u64 last;
	struct process *list;
};

_Static_assert(sizeof(struct processes) == 24, "as nvml.h has it");

#ifndef OLD
/* Each guest runs one program. */
int nvmlDeviceGetVgpuProcessesUtilizationInfo(struct card *device,
					      struct processes *to)
{
	u32 list[MAX_VGPUS], count, room = to->count, i;
	int ret = users(device, to->last, list, &count);

	if (ret)
		return ret;
	to->count = count;
	if (count && (!to->list || room < count))
		return INSUFFICIENT_SIZE;
	for (i = 0; i < count; i++) {
		to->list[i] = (struct process) {
			.time = 1000, .instance = list[i], .pid = 4000 + i,
			.sm = told("sm", list[i], 10),
		};
		strcpy(to->list[i].name, "blender\033[31m");
	}
	return SUCCESS;
}
#endif
