// SPDX-License-Identifier: GPL-2.0-only
/*
 * Taking functions over, and giving them back.
 *
 * A test host has no GPU. What vgpuctl sees of one is the PCI ids that the
 * kernel keeps in struct pci_dev, a driver called "nvidia", and that driver's
 * sysfs files. So the ids of the functions named by `pf=` are rewritten in the
 * kernel's copy (the hardware keeps its own), those of their VFs as each VF
 * appears, and a PCI driver of that name binds them all.
 *
 * There is no sriov_configure callback: the real driver has none, and a write
 * to sriov_numvfs is refused with ENOENT. VFs are enabled once, at load, or
 * by whatever driver the function is bound to in the meantime (pci-pf-stub).
 */
#include <linux/kobject.h>
#include <linux/module.h>
#include <linux/notifier.h>

#include "vgpulab.h"

#define LAB_MAX_CARDS	8

static char *pf[LAB_MAX_CARDS];
static int nr_pf;
module_param_array(pf, charp, &nr_pf, 0444);
MODULE_PARM_DESC(pf, "functions to take over, DDDD:BB:SS.F[,...]");

static char *form[LAB_MAX_CARDS] = { "vendor-vf" };
static int nr_form = 1;
module_param_array(form, charp, &nr_form, 0444);
MODULE_PARM_DESC(form, "mdev-pf|mdev-vf|vendor-vf[,...]; the last value also serves the functions after it");

static int vfs[LAB_MAX_CARDS];
static int nr_vfs = 1;
module_param_array(vfs, int, &nr_vfs, 0444);
MODULE_PARM_DESC(vfs, "VFs to enable at load[,...]; 0 = off; the last value also serves the functions after it");

static char *model[LAB_MAX_CARDS] = { "a100" };
static int nr_model = 1;
module_param_array(model, charp, &nr_model, 0444);
MODULE_PARM_DESC(model, "a100|rtx-pro-6000[,...]; the last value also serves the functions after it");

static ushort pci_device[LAB_MAX_CARDS];
static int nr_pci_device = 1;
module_param_array(pci_device, ushort, &nr_pci_device, 0444);
MODULE_PARM_DESC(pci_device, "PCI device id to show[,...] instead of the model's");

static bool mig[LAB_MAX_CARDS];
static int nr_mig = 1;
module_param_array(mig, bool, &nr_mig, 0444);
MODULE_PARM_DESC(mig, "whether MIG is on at load[,...]; the last value also serves the functions after it");

static struct lab_card cards[LAB_MAX_CARDS];
static int nr_cards;

/* ------------------------------------------------------------- labels */

static void lab_get_ids(const struct pci_dev *pdev, struct lab_ids *ids)
{
	*ids = (struct lab_ids) {
		.vendor = pdev->vendor,
		.device = pdev->device,
		.subvendor = pdev->subsystem_vendor,
		.subdevice = pdev->subsystem_device,
		.class = pdev->class,
		.revision = pdev->revision,
	};
}

static void lab_set_ids(struct pci_dev *pdev, const struct lab_ids *ids)
{
	pdev->vendor = ids->vendor;
	pdev->device = ids->device;
	pdev->subsystem_vendor = ids->subvendor;
	pdev->subsystem_device = ids->subdevice;
	pdev->class = ids->class;
	pdev->revision = ids->revision;
}

static void lab_relabel(const struct lab_card *card, struct pci_dev *pdev)
{
	const struct lab_ids ids = {
		.vendor = PCI_VENDOR_ID_NVIDIA,
		.device = card->device,
		.subvendor = PCI_VENDOR_ID_NVIDIA,
		.subdevice = LAB_SUBDEVICE,
		.class = LAB_CLASS,
		.revision = LAB_REVISION,
	};

	lab_set_ids(pdev, &ids);
}

/* The card that a function belongs to, whether it is its PF or one of its VFs. */
static struct lab_card *lab_card_of(struct pci_dev *pdev)
{
	int i;

	for (i = 0; i < nr_cards; i++)
		if (cards[i].pdev == pci_physfn(pdev))
			return &cards[i];
	return NULL;
}

/*
 * Runs before any driver is matched and before udev hears of the device, so
 * nobody ever sees a VF under its own name.
 */
static int lab_bus_event(struct notifier_block *nb, unsigned long event,
			 void *data)
{
	struct pci_dev *pdev = to_pci_dev(data);
	struct lab_card *card;

	if (event == BUS_NOTIFY_ADD_DEVICE && pdev->is_virtfn) {
		card = lab_card_of(pdev);
		if (card)
			lab_relabel(card, pdev);
	}
	return NOTIFY_DONE;
}

static struct notifier_block lab_bus_nb = {
	.notifier_call = lab_bus_event,
};

/* ------------------------------------------------------------- driver */

void lab_begin(struct lab_card *card)
{
	lockdep_assert_held(&card->lock);

	lab_mig_begin(card);
	card->mixed = false;
	lab_scheduler_load(card);
}

/* What nvidia-smi --gpu-reset does, when nobody has the card. */
int lab_reset(struct lab_card *card, const char *text)
{
	if (card->nr_vgpus || pci_num_vf(card->pdev) || lab_nr_clients())
		return -EBUSY;
	lab_begin(card);
	return 0;
}

static int lab_probe_pf(struct lab_card *card, struct pci_dev *pdev)
{
	int vfs_now = card->vfs_at_load;
	int ret;

	ret = pci_enable_device(pdev);
	if (ret)
		return ret;

	pci_set_drvdata(pdev, card);
	mutex_lock(&card->lock);
	lab_begin(card);
	mutex_unlock(&card->lock);
	ret = lab_proc_add(card);
	if (ret) {
		pci_disable_device(pdev);
		return ret;
	}
	if (card->form == LAB_MDEV_PF) {
		card->parent = lab_parent_add(card, pdev, false);
		if (IS_ERR(card->parent)) {
			ret = PTR_ERR(card->parent);
			card->parent = NULL;
		}
	} else if (vfs_now && !pci_num_vf(pdev)) {
		/* only once: who disabled them later wants them off */
		card->vfs_at_load = 0;
		ret = pci_enable_sriov(pdev, vfs_now);
	}
	if (ret) {
		lab_proc_del(card);
		pci_disable_device(pdev);
	}
	return ret;
}

static void lab_remove_pf(struct lab_card *card, struct pci_dev *pdev)
{
	if (card->parent)
		lab_parent_del(card->parent);
	card->parent = NULL;
	pci_disable_sriov(pdev);
	lab_proc_del(card);
	pci_disable_device(pdev);
}

static int lab_probe_vf(struct lab_card *card, struct pci_dev *pdev)
{
	struct lab_parent *parent;

	if (card->form == LAB_VENDOR_VF)
		return lab_vf_add(card, pdev);

	parent = lab_parent_add(card, pdev, true);
	if (IS_ERR(parent))
		return PTR_ERR(parent);
	pci_set_drvdata(pdev, parent);
	return 0;
}

static int lab_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	struct lab_card *card = lab_card_of(pdev);

	if (!card)
		return -ENODEV;		/* a real one: not ours to drive */
	if (!pdev->is_virtfn)
		return lab_probe_pf(card, pdev);
	if (card->form == LAB_MDEV_PF)
		return -ENODEV;
	return lab_probe_vf(card, pdev);
}

static void lab_remove(struct pci_dev *pdev)
{
	struct lab_card *card = lab_card_of(pdev);

	if (!pdev->is_virtfn)
		lab_remove_pf(card, pdev);
	else if (card->form == LAB_VENDOR_VF)
		lab_vf_del(pdev);
	else
		lab_parent_del(pci_get_drvdata(pdev));
}

/* No MODULE_DEVICE_TABLE: this must never load by itself. */
static const struct pci_device_id lab_pci_ids[] = {
	{ PCI_DEVICE(PCI_VENDOR_ID_NVIDIA, PCI_ANY_ID) },
	{ }
};

static struct pci_driver lab_pci_driver = {
	.name = LAB_DRIVER_NAME,
	.id_table = lab_pci_ids,
	.probe = lab_probe,
	.remove = lab_remove,
	.driver.probe_type = PROBE_FORCE_SYNCHRONOUS,
	/* VFIO owns the DMA of a vendor-vf; the other forms do none. */
	.driver_managed_dma = true,
};

/* --------------------------------------------------------- load, unload */

static int lab_parse_form(const char *text, enum lab_form *out)
{
	static const char * const names[] = {
		[LAB_MDEV_PF] = "mdev-pf",
		[LAB_MDEV_VF] = "mdev-vf",
		[LAB_VENDOR_VF] = "vendor-vf",
	};
	int i = match_string(names, ARRAY_SIZE(names), text);

	if (i < 0)
		return -EINVAL;
	*out = i;
	return 0;
}

/* Fills cards[i]; the reference on its function is dropped by lab_drop(). */
static int lab_find(int i)
{
	struct lab_card *card = &cards[i];
	unsigned int domain, bus, slot, func;
	int n_vfs = vfs[min(i, nr_vfs - 1)];

	if (sscanf(pf[i], "%x:%x:%x.%x", &domain, &bus, &slot, &func) != 4 ||
	    lab_parse_form(form[min(i, nr_form - 1)], &card->form)) {
		pr_err("vgpulab: bad pf= or form= for function %d\n", i);
		return -EINVAL;
	}
	card->model = lab_find_model(model[min(i, nr_model - 1)]);
	if (!card->model) {
		pr_err("vgpulab: bad model= for function %d\n", i);
		return -EINVAL;
	}
	card->nr_types = card->form == LAB_MDEV_PF ?
			 card->model->nr_time_sliced : card->model->nr_types;
	card->mig_pending = lab_has_mig(card) && mig[min(i, nr_mig - 1)];
	card->pdev = pci_get_domain_bus_and_slot(domain, bus,
						 PCI_DEVFN(slot, func));
	if (!card->pdev) {
		pr_err("vgpulab: no function %s\n", pf[i]);
		return -ENODEV;
	}
	nr_cards = i + 1;
	mutex_init(&card->lock);
	card->device = pci_device[min(i, nr_pci_device - 1)] ?:
		       card->model->device;
	if (card->form == LAB_MDEV_PF)
		return 0;
	if (n_vfs < 0 || n_vfs > pci_sriov_get_totalvfs(card->pdev)) {
		pci_err(card->pdev, "vgpulab: has %d VFs, not %d\n",
			pci_sriov_get_totalvfs(card->pdev), n_vfs);
		return -EINVAL;
	}
	card->vfs_at_load = n_vfs;
	return 0;
}

static void lab_take_over(struct lab_card *card)
{
	device_release_driver(&card->pdev->dev);
	lab_get_ids(card->pdev, &card->real);
	lab_relabel(card, card->pdev);
	card->relabelled = true;
}

static void lab_drop(struct lab_card *card)
{
	if (card->relabelled) {
		lab_set_ids(card->pdev, &card->real);
		/* it may have been unplugged since */
		if (device_is_registered(&card->pdev->dev))
			kobject_uevent(&card->pdev->dev.kobj, KOBJ_CHANGE);
	}
	pci_dev_put(card->pdev);
	card->pdev = NULL;
}

static void lab_drop_all(void)
{
	while (nr_cards)
		lab_drop(&cards[--nr_cards]);
}

/* A failed probe does not fail pci_register_driver(); ask each function. */
static int lab_all_bound(void)
{
	int i;

	for (i = 0; i < nr_cards; i++) {
		if (cards[i].pdev->dev.driver != &lab_pci_driver.driver) {
			pci_err(cards[i].pdev, "vgpulab: did not bind\n");
			return -EIO;
		}
	}
	return 0;
}

static int __init lab_init(void)
{
	int i, ret;

	if (!nr_pf) {
		pr_err("vgpulab: pf= is missing\n");
		return -EINVAL;
	}
	for (i = 0; i < nr_pf; i++) {
		ret = lab_find(i);
		if (ret)
			goto err_cards;
	}
	ret = lab_mdev_init();
	if (ret)
		goto err_cards;
	ret = lab_proc_init();
	if (ret)
		goto err_mdev;
	ret = bus_register_notifier(&pci_bus_type, &lab_bus_nb);
	if (ret)
		goto err_proc;
	for (i = 0; i < nr_cards; i++)
		lab_take_over(&cards[i]);
	ret = pci_register_driver(&lab_pci_driver);
	if (ret)
		goto err_notifier;
	ret = lab_all_bound();
	if (ret)
		goto err_driver;
	/* udev and libvirt read the new ids from this */
	for (i = 0; i < nr_cards; i++)
		kobject_uevent(&cards[i].pdev->dev.kobj, KOBJ_CHANGE);
	return 0;

err_driver:
	pci_unregister_driver(&lab_pci_driver);
err_notifier:
	bus_unregister_notifier(&pci_bus_type, &lab_bus_nb);
err_proc:
	lab_proc_exit();
err_mdev:
	lab_mdev_exit();
err_cards:
	lab_drop_all();
	return ret;
}

static void __exit lab_exit(void)
{
	pci_unregister_driver(&lab_pci_driver);
	bus_unregister_notifier(&pci_bus_type, &lab_bus_nb);
	lab_proc_exit();
	lab_mdev_exit();
	lab_drop_all();
}

module_init(lab_init);
module_exit(lab_exit);

MODULE_DESCRIPTION("Emulated SR-IOV functions that look like NVIDIA vGPU cards (tests only)");
MODULE_AUTHOR("The vgpuctl authors");
/* modprobe nvidia: with it come the options that people give to nvidia */
MODULE_ALIAS("nvidia");
MODULE_LICENSE("GPL");
