# SPDX-License-Identifier: Apache-2.0
"""The parts of the tests' libnvidia-ml that a GPU or a driver may lack, each behind its own macro.

MIG is that of an 80 GiB A100 with four of its profiles; its state lasts as long as the process that loads it.
"""

MIG = r"""
#ifdef PROFILE_IDS
int nvmlVgpuTypeGetGpuInstanceProfileId(u t, u *id) { say("type-profile"); *id = t == 468 ? 0xFFFFFFFF : 19; return 0; }
#endif
#ifdef PER_GI
int nvmlVgpuTypeGetMaxInstancesPerGpuInstance(u *m) {
    if (m[0] != 0x100000C) return 25;
    m[2] = m[1] == 471 ? 12 : 99; return SUCCESS; }
#endif
#ifdef MODE
#ifndef ACTIVATION
#define ACTIVATION 0
#endif
#ifndef MAKE_COMPUTE
#define MAKE_COMPUTE 0
#endif
#ifndef DESTROY
#define DESTROY 0
#endif
#ifndef MIG_ANSWER
#define MIG_ANSWER 0
#endif
typedef unsigned long long ull;
typedef struct { u id, p2p, slices, count, sm, ce, dec, enc, jpeg, ofa; ull mb; } kind1;
typedef struct { u version, id, p2p, slices, count, sm, ce, dec, enc, jpeg, ofa; ull mb; char name[96]; } kind2;
typedef struct { u start, size; } place;
typedef struct { void *device; u id, profile; place at; } info;
typedef struct { u id, slices, count, rest[6]; } compute_kind;
typedef struct gi { u id, profile, start, size, here, compute; } gi;
static u current = MODE, pending = MODE;
static const struct { u index, id, slices, count; ull mb; const char *name; u size, places, starts[7]; } rows[] = {
    {7, 20, 1, 1, 9856, "MIG 1g.10gb+me", 1, 7, {0, 1, 2, 3, 4, 5, 6}},
    {0, 19, 1, 7, 9856, "MIG 1g.10gb", 1, 7, {0, 1, 2, 3, 4, 5, 6}},
    {2, 9, 3, 2, 40192, "MIG 3g.40gb", 4, 2, {4, 0}},
    {4, 0, 7, 1, 80384, "MIG 7g.80gb", 8, 1, {0}},
};
static gi made[8] = {{5, 9, 4, 4, 1, 1}};
static int row(u by, u value) {
    for (int n = 0; n < 4; n++) if ((by ? rows[n].id : rows[n].index) == value) return n;
    return -1; }
static void tell(const char *what, u a, u b, u c) {
    char line[99]; sprintf(line, "%s:%u,%u,%u", what, a, b, c); say(line); }
int nvmlDeviceGetMigMode(void *h, u *c, u *p) { say("mode"); *c = current; *p = pending; return SUCCESS; }
int nvmlDeviceSetMigMode(void *h, u mode, u *status) {
    tell("set-mode", mode, 0, 0);
    *status = mode == current ? 0 : ACTIVATION;
    if (!*status) current = mode;
#ifndef FORGETS
    pending = mode;
#endif
    return MIG_ANSWER; }
int nvmlDeviceGetGpuInstanceProfileInfo(void *h, u index, kind1 *k) {
    int n = row(0, index);
    say("profile");
    if (n < 0) return NOT_SUPPORTED;
    k->id = rows[n].id; k->slices = rows[n].slices; k->count = rows[n].count; k->mb = rows[n].mb; return SUCCESS; }
#ifndef NO_NAMES
int nvmlDeviceGetGpuInstanceProfileInfoV(void *h, u index, kind2 *k) {
    int n = row(0, index);
    say("profile");
    if (k->version != 0x02000098) return 25;
    if (n < 0) return NOT_SUPPORTED;
    k->id = rows[n].id; k->slices = rows[n].slices; k->count = rows[n].count; k->mb = rows[n].mb;
    strcpy(k->name, rows[n].name); return SUCCESS; }
#endif
int nvmlDeviceGetGpuInstancePossiblePlacements_v2(void *h, u id, place *to, u *count) {
    int n = row(1, id);
    say("places");
#ifdef NO_PLACES
    if (id == 20) return 4;
#endif
    if (n < 0) return 2;
    *count = rows[n].places;
    for (u p = 0; to && p < rows[n].places; p++) { to[p].start = rows[n].starts[p]; to[p].size = rows[n].size; }
    return SUCCESS; }
int nvmlDeviceGetGpuInstances(void *h, u id, gi **to, u *count) {
    say("instances");
#ifdef OTHERS
    return 4;
#endif
    *count = 0;
    for (int n = 0; n < 8; n++) if (made[n].here && made[n].profile == id) to[(*count)++] = &made[n];
    return SUCCESS; }
int nvmlDeviceGetGpuInstanceById(void *h, u id, gi **to) {
    for (int n = 0; n < 8; n++) if (made[n].here && made[n].id == id) { *to = &made[n]; return SUCCESS; }
    return NOT_FOUND; }
int nvmlGpuInstanceGetInfo(gi *one, info *to) {
    to->id = one->id; to->profile = one->profile; to->at.start = one->start; to->at.size = one->size; return SUCCESS; }
int nvmlDeviceCreateGpuInstanceWithPlacement(void *h, u id, const place *at, gi **to) {
    tell("make", id, at->start, at->size);
    made[1] = (gi){6, id, at->start, at->size, 1, 0}; *to = &made[1]; return SUCCESS; }
int nvmlGpuInstanceDestroy(gi *one) {
    tell("destroy", one->id, 0, 0);
    if (one->compute) return 19;
    if (!DESTROY) one->here = 0;
    return DESTROY; }
int nvmlGpuInstanceGetComputeInstanceProfileInfo(gi *one, u index, u engine, compute_kind *to) {
    if (index > 2 || engine) return NOT_SUPPORTED;
    to->id = index + 1; to->slices = index + 1; to->count = 3 / (index + 1); return SUCCESS; }
int nvmlGpuInstanceCreateComputeInstance(gi *one, u id, gi **to) {
    tell("make-compute", one->id, id, 0);
    if (!MAKE_COMPUTE) one->compute = id == 3;
    *to = one; return MAKE_COMPUTE; }
int nvmlGpuInstanceGetComputeInstances(gi *one, u id, gi **to, u *count) {
    *count = one->compute && id == 3; to[0] = one; return SUCCESS; }
int nvmlComputeInstanceDestroy(gi *one) { tell("destroy-compute", one->id, 0, 0); one->compute = 0; return SUCCESS; }
#endif
"""

PLACEMENTS = r"""
#ifdef MIXED
#ifndef MIXED_ANSWER
#define MIXED_ANSWER 0
#endif
typedef struct { u version, size, count, *ids, mode; } places;
static u mixed = MIXED;
int nvmlDeviceGetVgpuHeterogeneousMode(void *h, u *m) {
    say("mixed?");
    if (m[0] != 0x1000008) return 25;
    m[1] = mixed; return mixed > 1 ? NOT_SUPPORTED : SUCCESS; }
int nvmlDeviceSetVgpuHeterogeneousMode(void *h, u *m) {
    char line[99]; sprintf(line, "mixed:%u", m[1]); say(line);
    if (m[0] != 0x1000008) return 25;
    mixed = m[1]; return MIXED_ANSWER; }
int nvmlDeviceGetVgpuTypeSupportedPlacements(void *h, u t, places *to) {
    static const u few[] = {20, 0}, many[] = {0, 8, 12, 20};
    u n = t == 468 ? 4 : 2;
    say(to->version == 0x2000020 ? "places-2" : "places-1");
#ifdef FIRST_LIST
    if (to->version != 0x1000018) return 25;
#else
    if (to->version != 0x2000020) return 25;
    if (to->mode) return NOT_SUPPORTED;
    if (to->count < n) return INSUFFICIENT_SIZE;
#endif
    to->size = t == 468 ? 4 : 20; to->count = n;
    memcpy(to->ids, t == 468 ? many : few, n * sizeof(u)); return SUCCESS; }
#endif
"""

INSTANCE_SCHEDULERS = r"""
#if defined(MODE) && defined(INSTANCE_V1)
typedef struct { u version, engine, policy, mode, first, second; } instance_state;
int nvmlGpuInstanceGetVgpuSchedulerState(gi *one, instance_state *s) {
    if (s->version != 0x1000018) return 25;
    if (s->engine != 1) return 2;
    s->policy = 2; s->mode = 2; s->first = 30 + one->id; s->second = 2083333; return SUCCESS; }
int nvmlGpuInstanceSetVgpuSchedulerState(gi *one, instance_state *s) {
    char line[99];
    sprintf(line, "v1-gi%u:%x,%u,%u,%u,%u,%u", one->id, s->version, s->engine, s->policy, s->mode, s->first, s->second);
    say(line); return ANSWER; }
#endif
#if defined(MODE) && defined(INSTANCE_V2)
int nvmlGpuInstanceGetVgpuSchedulerState_v2(gi *one, state2 *s) {
    say("gi-state");
    if (s->engine != 1) return 2;
    s->policy = 3; s->factor = 20; s->last = 1041666; return INSTANCE_V2; }
int nvmlGpuInstanceSetVgpuSchedulerState_v2(gi *one, state2 *s) {
    char line[99]; sprintf(line, "v2-gi%u:%u,%u,%u,%u", one->id, s->engine, s->policy, s->factor, s->last);
    say(line); return ANSWER; }
#endif
"""

NVLINK = r"""
#ifdef NVLINK
typedef struct { char legacy[16]; u domain, bus, device, id, subsystem; char bus_id[32]; } pci_info;
int nvmlDeviceGetNvLinkState(void *h, u link, u *active) {
    *active = link != 1; return link < 4 ? SUCCESS : 2; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *h, u link, pci_info *pci) {
    strcpy(pci->bus_id, link == 3 ? "00000000:05:00.0" : NVLINK); return SUCCESS; }
#ifndef OLD_NVLINK
int nvmlDeviceGetNvLinkRemoteDeviceType(void *h, u link, u *kind) { *kind = link == 3 ? 2 : 0; return SUCCESS; }
#endif
#endif
"""

GUESTS = r"""
#ifdef GUESTS
int nvmlDeviceGetActiveVgpus(void *h, u *count, u *ids) {
    if (!ids) { *count = GUESTS; return GUESTS ? INSUFFICIENT_SIZE : SUCCESS; }
    for (u n = 0; n < GUESTS; n++) ids[n] = n + 1;
    return SUCCESS; }
int nvmlVgpuInstanceGetVmID(u one, char *id, u size, u *kind) {
    strcpy(id, one == 2 ? "17" : "AAAAAAAA-0000-4000-8000-000000000001"); *kind = one != 2;
    return one == 3 ? NOT_FOUND : SUCCESS; }
#ifndef NO_GUEST_DRIVER
int nvmlVgpuInstanceGetVmDriverVersion(u one, char *version, u size) {
    strcpy(version, one == 2 ? "Not Available" : "551.61"); return one == 3 ? NOT_FOUND : SUCCESS; }
#endif
#endif
"""

MOVES = r"""
#ifdef MOVES
#define OPAQUE 300
typedef struct { u version, revision, state; char guest[80], host[80]; u reserved[6], caps, range, size; } vgpu_head;
typedef struct { u version; unsigned long size; } state_size;
static int blob(char *to, u *size, u of) {
    u whole = sizeof(vgpu_head) + OPAQUE;
    vgpu_head head = {3, 1};
    if (!to || *size < whole) { *size = whole; return INSUFFICIENT_SIZE; }
    head.size = OPAQUE;
    memcpy(to, &head, sizeof head);
    memset(to + sizeof head, 0x40 + of, OPAQUE);
    *size = whole; return SUCCESS; }
int nvmlDeviceGetVgpuCapabilities(void *h, u which, u *to) {
    *to = which == 3 ? 5800 : which == 4 ? 0 : which == 5; return SUCCESS; }
int nvmlVgpuInstanceGetMdevUUID(u one, char *id, u size) {
    strcpy(id, "BBBBBBBB-0000-4000-8000-000000000001"); return one == 2 ? 3 : SUCCESS; }
int nvmlVgpuInstanceGetType(u one, u *kind) { *kind = 468; return SUCCESS; }
#ifndef OLD
int nvmlVgpuInstanceGetRuntimeStateSize(u one, state_size *to) {
    to->size = 5ULL << 30; return to->version == 0x1000010 ? SUCCESS : 25; }
int nvmlVgpuInstanceGetMetadata(u one, char *to, u *size) { return blob(to, size, one); }
int nvmlDeviceGetVgpuMetadata(void *h, char *to, u *size) { return blob(to, size, 0); }
int nvmlGetVgpuCompatibility(char *vgpu, char *gpu, u *to) {
    if (gpu[sizeof(vgpu_head)] != 0x40) return 2;
    to[0] = MOVES & 0xff; to[1] = MOVES >> 8;
    return ((vgpu_head *)vgpu)->size == OPAQUE ? SUCCESS : 2; }
#endif
#endif
"""
