// SPDX-License-Identifier: GPL-2.0-only
/*
 * How the vGPUs of a card share its time.
 *
 * Nothing is scheduled here. The card keeps what was asked for, begins with
 * the word RmPVMRL of the driver's registry, and takes another policy only
 * while no vGPU exists. Whatever was set is gone when the driver lets go of
 * the card. What the bits mean depends on the driver's generation.
 */
#include <linux/errno.h>
#include <linux/kernel.h>
#include <linux/string.h>

#include "vgpulab.h"

enum { DRIVERS_CHOICE, STRICT, ADAPTIVE };

#define ADAPTIVE_SINCE		535	/* the branch that has adaptive slices */
#define STRICT_BIT_SINCE	550	/* bit 1 of the word turns them off */
#define ADAPTIVE_ALWAYS_SINCE	595

#define LEAST_SLICE_NS		1000000u
#define MOST_SLICE_NS		30000000u
#define LEAST_HZ		63u
#define MOST_HZ			960u
#define LEAST_FACTOR		1u
#define MOST_FACTOR		60u

/* What a card gets that can carry more than eight vGPUs. */
#define DEFAULT_SLICE_NS	1000000u
#define DEFAULT_HZ		960u
#define DEFAULT_FACTOR		33u

static const char * const policy_names[] = {
	"NONE", "BEST_EFFORT", "EQUAL_SHARE", "FIXED_SHARE",
};

static void lab_scheduler_fill(struct lab_scheduler *to, unsigned int policy,
			       bool strict, unsigned int factor,
			       unsigned int hz, unsigned int slice_ns)
{
	*to = (struct lab_scheduler) { .policy = policy };
	if (policy == LAB_BEST_EFFORT)
		return;
	to->mode = strict ? STRICT : ADAPTIVE;
	to->factor = strict ? 0 : factor ?: DEFAULT_FACTOR;
	to->slice_ns = strict ? slice_ns ?: DEFAULT_SLICE_NS :
				1000000000u / (hz ?: DEFAULT_HZ);
}

static void lab_scheduler_log(const struct lab_card *card)
{
	const char *name = policy_names[card->scheduler.policy];

	if (lab_branch() >= 590)
		pr_info("NVRM: GPU at %s has software scheduler ENABLED with policy %s on GR\n",
			pci_name(card->pdev), name);
	else
		pr_info("NVRM: GPU at %s has software scheduler %s with policy %s.\n",
			pci_name(card->pdev),
			card->scheduler.policy == LAB_BEST_EFFORT ? "DISABLED" :
								"ENABLED",
			name);
}

/* Needs card->lock. */
void lab_scheduler_load(struct lab_card *card)
{
	u32 word = lab_registry_word(pci_name(card->pdev), "RmPVMRL");
	unsigned int branch = lab_branch();
	unsigned int policy = LAB_BEST_EFFORT;
	bool strict = branch < STRICT_BIT_SINCE ||
		      (branch < ADAPTIVE_ALWAYS_SINCE && (word & 2));

	if (word & 1)
		policy = ((word >> 4) & 0xf) == 1 ? LAB_FIXED_SHARE : LAB_EQUAL_SHARE;
	lab_scheduler_fill(&card->scheduler, policy, strict, word >> 24,
			   (word >> 12) & 0x3ff,
			   ((word >> 16) & 0xff) * 1000000u);
	lab_scheduler_log(card);
}

static bool lab_outside(unsigned int value, unsigned int least,
			unsigned int most)
{
	return value && (value < least || value > most);
}

/* "POLICY MODE FACTOR HZ SLICE_NS", numbers of NVML's set calls; 0 is the driver's choice. */
static int lab_scheduler_read(const char *text, struct lab_scheduler *to)
{
	unsigned int policy, mode, factor, hz, slice_ns;
	unsigned int branch = lab_branch();

	if (sscanf(text, "%u %u %u %u %u", &policy, &mode, &factor,
		   &hz, &slice_ns) != 5)
		return -EINVAL;
	if (policy < LAB_BEST_EFFORT || policy > LAB_FIXED_SHARE || mode > ADAPTIVE)
		return -EINVAL;
	if (policy != LAB_BEST_EFFORT) {
		if (mode == DRIVERS_CHOICE)
			mode = branch < ADAPTIVE_SINCE ? STRICT : ADAPTIVE;
		if (mode == STRICT && (branch >= ADAPTIVE_ALWAYS_SINCE ||
				       factor || hz))
			return -EINVAL;
		if (mode == ADAPTIVE && (branch < ADAPTIVE_SINCE || slice_ns))
			return -EINVAL;
		if (lab_outside(factor, LEAST_FACTOR, MOST_FACTOR) ||
		    lab_outside(hz, LEAST_HZ, MOST_HZ) ||
		    lab_outside(slice_ns, LEAST_SLICE_NS, MOST_SLICE_NS))
			return -EINVAL;
	}
	lab_scheduler_fill(to, policy, mode == STRICT, factor, hz, slice_ns);
	return 0;
}

/* "scheduler POLICY ..." Needs card->lock, as does the next. */
int lab_scheduler_set(struct lab_card *card, const char *text)
{
	struct lab_scheduler wanted;
	int ret = lab_scheduler_read(text + strlen("scheduler "), &wanted);

	if (ret)
		return ret;
	if (card->nr_vgpus || card->mig ||
	    (card->mixed && wanted.policy == LAB_FIXED_SHARE))
		return -EOPNOTSUPP;
	card->scheduler = wanted;
	return 0;
}

/* "gi_scheduler GI POLICY ..." */
int lab_gi_scheduler_set(struct lab_card *card, const char *text)
{
	struct lab_scheduler wanted;
	struct lab_gi *gi;
	unsigned int id;
	int at, ret;

	if (sscanf(text, "gi_scheduler %u %n", &id, &at) != 1)
		return -EINVAL;
	ret = lab_scheduler_read(text + at, &wanted);
	if (ret)
		return ret;
	gi = lab_gi_by_id(card, id);
	if (!gi)
		return -ENOENT;
	if (card->model->architecture < LAB_BLACKWELL || gi->nr_vgpus)
		return -EOPNOTSUPP;
	gi->scheduler = wanted;
	return 0;
}

/* Needs card->lock. */
void lab_scheduler_show(struct seq_file *out, const struct lab_card *card)
{
	const struct lab_scheduler *now = &card->scheduler, with_mig = {
		.policy = LAB_FIXED_SHARE,
		.mode = STRICT,
		.slice_ns = DEFAULT_SLICE_NS,
	};

	/* GPU instances share nothing to schedule (_gpuGetSchedulerPolicyGr) */
	if (card->mig && card->model->architecture < LAB_BLACKWELL)
		now = &with_mig;
	seq_printf(out, "limits %u %u %u %u %u %u %u\n", LEAST_SLICE_NS,
		   MOST_SLICE_NS, LEAST_HZ, MOST_HZ, LEAST_FACTOR, MOST_FACTOR,
		   lab_branch() >= ADAPTIVE_SINCE);
	seq_printf(out, "scheduler %u %u %u %u\n", now->policy, now->mode,
		   now->factor, now->slice_ns);
}
