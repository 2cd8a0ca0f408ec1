// SPDX-License-Identifier: GPL-2.0-only
/*
 * What the driver shows beside sysfs: /proc/driver/nvidia and /dev/nvidiactl.
 *
 * version, params, gpus/ADDRESS/information and gpus/ADDRESS/unbindLock are
 * the vendor's. gpus/ADDRESS/vgpulab is ours: everything that NVML tells of
 * a card, from one moment, and what it sets. nvidiactl has no other use than
 * to be open while NVML is: an unbindLock is granted only when nobody has it.
 */
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/proc_fs.h>
#include <linux/sched.h>
#include <linux/uaccess.h>

#include "vgpulab.h"

static struct proc_dir_entry *lab_proc, *lab_proc_gpus;
static atomic_t lab_clients = ATOMIC_INIT(0);

static uint nvml_opens;
module_param(nvml_opens, uint, 0444);
MODULE_PARM_DESC(nvml_opens, "how often nvidiactl was opened");

static bool hang;
module_param(hang, bool, 0644);
MODULE_PARM_DESC(hang, "while it is set, opening nvidiactl waits and no signal ends it");

/* ------------------------------------------------------------ nvidiactl */

unsigned int lab_nr_clients(void)
{
	return atomic_read(&lab_clients);
}

static int lab_ctl_open(struct inode *inode, struct file *file)
{
	while (READ_ONCE(hang))
		schedule_timeout_uninterruptible(HZ / 10);
	atomic_inc(&lab_clients);
	nvml_opens++;
	return 0;
}

static int lab_ctl_release(struct inode *inode, struct file *file)
{
	atomic_dec(&lab_clients);
	return 0;
}

static const struct file_operations lab_ctl_ops = {
	.owner = THIS_MODULE,
	.open = lab_ctl_open,
	.release = lab_ctl_release,
};

static struct miscdevice lab_ctl = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "nvidiactl",
	.fops = &lab_ctl_ops,
	.mode = 0666,
};

/* --------------------------------------------------- the driver's files */

static int lab_version_show(struct seq_file *out, void *unused)
{
	seq_printf(out, "NVRM version: NVIDIA UNIX x86_64 Kernel Module  %s\n",
		   lab_driver);
	return 0;
}

static int lab_params_show(struct seq_file *out, void *unused)
{
	seq_printf(out, "RegistryDwords: \"%s\"\nRegistryDwordsPerDevice: \"%s\"\n",
		   lab_words, lab_words_per_device);
	return 0;
}

/* ----------------------------------------------------- a card's own files */

static int lab_information_show(struct seq_file *out, void *unused)
{
	struct lab_card *card = out->private;

	seq_printf(out, "Model: \t\t %s\nBus Location: \t %s\n",
		   card->model->name, pci_name(card->pdev));
	return 0;
}

static int lab_lock_show(struct seq_file *out, void *unused)
{
	struct lab_card *card = out->private;

	seq_printf(out, "%d\n", READ_ONCE(card->unbind_lock));
	return 0;
}

static int lab_lock_open(struct inode *inode, struct file *file)
{
	return single_open(file, lab_lock_show, pde_data(inode));
}

/* Whether it was granted is read back; asking for it never fails. */
static ssize_t lab_lock_write(struct file *file, const char __user *buf,
			      size_t count, loff_t *ppos)
{
	struct lab_card *card = pde_data(file_inode(file));
	unsigned int wanted;
	int ret = kstrtouint_from_user(buf, count, 10, &wanted);

	if (ret)
		return ret;
	WRITE_ONCE(card->unbind_lock, wanted && !lab_nr_clients());
	if (card->unbind_lock)
		pci_info(card->pdev, "NVRM: UnbindLock acquired\n");
	else if (wanted)
		pci_info(card->pdev, "NVRM: Could not acquire UnbindLock\n");
	return count;
}

static const struct proc_ops lab_lock_ops = {
	.proc_open = lab_lock_open,
	.proc_read = seq_read,
	.proc_write = lab_lock_write,
	.proc_lseek = seq_lseek,
	.proc_release = single_release,
};

static int lab_state_show(struct seq_file *out, void *unused)
{
	struct lab_card *card = out->private;
	const struct lab_vgpu_slot *slot;
	const struct lab_type *type = card->model->types;
	int i;

	mutex_lock(&card->lock);
	seq_printf(out, "model %s\nmemory_mib %u\nsriov %d\narchitecture %u\n",
		   card->model->name, card->model->memory_mib,
		   card->form != LAB_MDEV_PF, card->model->architecture);
	lab_scheduler_show(out, card);
	lab_mig_show(out, card);
	for (i = 0; i < card->nr_types; i++, type++)
		seq_printf(out, "type %u %llu %u %d %u %u %s\n", type->id,
			   type->framebuffer_mib, type->max_instance,
			   !!lab_room(card, type), type->gi_profile,
			   type->max_per_gi, type->name);
	lab_mixed_show(out, card);
	for (i = 0; i < LAB_MAX_VGPUS; i++) {
		slot = &card->vgpus[i];
		if (slot->type)
			seq_printf(out, "vgpu %u %u %pUl %d %u %u\n",
				   slot->instance, slot->type->id, &slot->uuid,
				   slot->user, slot->placement, slot->gi ?
				   slot->gi->id : LAB_NO_PROFILE);
	}
	mutex_unlock(&card->lock);
	return 0;
}

static int lab_state_open(struct inode *inode, struct file *file)
{
	return single_open(file, lab_state_show, pde_data(inode));
}

/* Each has its first word, and is held to it by its own reading of the text. */
static const struct {
	const char *word;
	int (*act)(struct lab_card *card, const char *text);
} lab_acts[] = {
	{ "scheduler ", lab_scheduler_set },
	{ "gi_scheduler ", lab_gi_scheduler_set },
	{ "mig ", lab_mig_set },
	{ "gi ", lab_gi_make },
	{ "drop_gi ", lab_gi_drop },
	{ "ci ", lab_ci_make },
	{ "drop_ci ", lab_ci_drop },
	{ "mixed ", lab_mixed_set },
	{ "reset", lab_reset },
};

static ssize_t lab_state_write(struct file *file, const char __user *buf,
			       size_t count, loff_t *ppos)
{
	struct lab_card *card = pde_data(file_inode(file));
	char text[80] = "";
	int ret = -EINVAL, i;

	if (count >= sizeof(text))
		return -EINVAL;
	if (copy_from_user(text, buf, count))
		return -EFAULT;
	mutex_lock(&card->lock);
	for (i = 0; i < ARRAY_SIZE(lab_acts); i++)
		if (!strncmp(text, lab_acts[i].word, strlen(lab_acts[i].word)))
			ret = lab_acts[i].act(card, text);
	mutex_unlock(&card->lock);
	return ret ?: count;
}

static const struct proc_ops lab_state_ops = {
	.proc_open = lab_state_open,
	.proc_read = seq_read,
	.proc_write = lab_state_write,
	.proc_lseek = seq_lseek,
	.proc_release = single_release,
};

int lab_proc_add(struct lab_card *card)
{
	card->unbind_lock = false;
	card->proc = proc_mkdir(pci_name(card->pdev), lab_proc_gpus);
	if (card->proc &&
	    proc_create_single_data("information", 0444, card->proc,
				    lab_information_show, card) &&
	    proc_create_data("unbindLock", 0644, card->proc, &lab_lock_ops,
			     card) &&
	    proc_create_data("vgpulab", 0644, card->proc, &lab_state_ops, card))
		return 0;
	lab_proc_del(card);
	return -ENOMEM;
}

/* Waits for who is reading: not to be called with card->lock. */
void lab_proc_del(struct lab_card *card)
{
	proc_remove(card->proc);
	card->proc = NULL;
}

int lab_proc_init(void)
{
	int ret = misc_register(&lab_ctl);

	if (ret)
		return ret;
	lab_proc = proc_mkdir("driver/nvidia", NULL);
	if (lab_proc &&
	    proc_create_single("version", 0444, lab_proc, lab_version_show) &&
	    proc_create_single("params", 0444, lab_proc, lab_params_show)) {
		lab_proc_gpus = proc_mkdir("gpus", lab_proc);
		if (lab_proc_gpus)
			return 0;
	}
	lab_proc_exit();
	return -ENOMEM;
}

void lab_proc_exit(void)
{
	proc_remove(lab_proc);
	misc_deregister(&lab_ctl);
}
