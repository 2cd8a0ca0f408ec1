// SPDX-License-Identifier: GPL-2.0-only
/*
 * The driver as a whole: its version, and the registry words it was loaded with.
 *
 * The words keep the vendor's parameter names, so `modprobe nvidia` (an alias
 * of this module) brings what people write for the real one. A word for one
 * device goes before the one for all; of two entries the last one counts.
 */
#include <linux/kernel.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/string.h>

#include "vgpulab.h"

char *lab_driver = "590.48.01";
module_param_named(driver, lab_driver, charp, 0444);
MODULE_PARM_DESC(driver, "the version of the driver that this plays");

char *lab_words = "";
module_param_named(NVreg_RegistryDwords, lab_words, charp, 0444);
MODULE_PARM_DESC(NVreg_RegistryDwords, "NAME=WORD[;...] for every card");

char *lab_words_per_device = "";
module_param_named(NVreg_RegistryDwordsPerDevice, lab_words_per_device, charp, 0444);
MODULE_PARM_DESC(NVreg_RegistryDwordsPerDevice, "pci=ADDRESS;NAME=WORD[;pci=...]");

unsigned int lab_branch(void)
{
	unsigned int branch = 0;

	sscanf(lab_driver, "%u", &branch);
	return branch;
}

/* DDDD:BB:SS.F, DDDD:BB:SS or BB:SS */
static bool lab_same_device(const char *text, const char *address)
{
	unsigned int a[4] = {}, b[4] = {};

	sscanf(address, "%x:%x:%x.%x", &b[0], &b[1], &b[2], &b[3]);
	if (sscanf(text, "%x:%x:%x.%x", &a[0], &a[1], &a[2], &a[3]) < 3) {
		a[0] = a[3] = 0;
		if (sscanf(text, "%x:%x", &a[1], &a[2]) != 2)
			return false;
	}
	return !memcmp(a, b, sizeof(a));
}

/* Replaces *word when `entries` has the name, for this device or for all. */
static void lab_find_word(const char *entries, const char *address,
			  const char *name, bool here, u32 *word)
{
	char *copy = kstrdup(entries, GFP_KERNEL);
	char *rest = copy, *entry, *value;

	while (copy && (entry = strsep(&rest, ";"))) {
		value = strchr(entry, '=');
		if (!value)
			continue;
		*value++ = '\0';
		if (!strcmp(entry, "pci"))
			here = lab_same_device(value, address);
		else if (here && !strcmp(entry, name) &&
			 kstrtou32(value, 0, word))
			pr_warn("vgpulab: %s=%s is no number\n", entry, value);
	}
	kfree(copy);
}

u32 lab_registry_word(const char *address, const char *name)
{
	u32 word = 0;

	lab_find_word(lab_words, address, name, true, &word);
	lab_find_word(lab_words_per_device, address, name, false, &word);
	return word;
}
