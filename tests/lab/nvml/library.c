/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Start and end. While NVML is initialised it has the driver's control node
 * open, which is what keeps sriov-manage from taking a GPU. A library works
 * with the driver of its own version alone.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "lab.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;	/* for both */
static int control = -1, users;

int opened(void)
{
	int answer;

	pthread_mutex_lock(&lock);
	answer = users > 0;
	pthread_mutex_unlock(&lock);
	return answer;
}

static int start(void)
{
	char driver[80];

	control = open(NODE, O_RDWR | O_CLOEXEC);
	if (control < 0)
		return errno == EACCES ? NO_PERMISSION : DRIVER_NOT_LOADED;
	if (driver_version(driver, sizeof(driver)) == SUCCESS &&
	    !strcmp(driver, VERSION))
		return SUCCESS;
	close(control);
	return LIB_RM_VERSION_MISMATCH;
}

int nvmlInitWithFlags(u32 flags)
{
	int ret;

	(void)flags;
	pthread_mutex_lock(&lock);
	ret = users ? SUCCESS : start();
	if (ret == SUCCESS)
		users++;
	pthread_mutex_unlock(&lock);
	return ret;
}

int nvmlInit_v2(void)
{
	return nvmlInitWithFlags(0);
}

int nvmlShutdown(void)
{
	int ret = UNINITIALIZED;

	pthread_mutex_lock(&lock);
	if (users) {
		ret = SUCCESS;
		if (!--users)
			close(control);
	}
	pthread_mutex_unlock(&lock);
	return ret;
}

int nvmlSystemGetDriverVersion(char *version, u32 size)
{
	return opened() ? driver_version(version, size) : UNINITIALIZED;
}

int nvmlSystemGetNVMLVersion(char *version, u32 size)
{
	return opened() ? give_text("13." VERSION, version, size) : UNINITIALIZED;
}

const char *nvmlErrorString(int number)
{
	switch (number) {
	case SUCCESS: return "Success";
	case UNINITIALIZED: return "Uninitialized";
	case INVALID_ARGUMENT: return "Invalid Argument";
	case NOT_SUPPORTED: return "Not Supported";
	case NO_PERMISSION: return "Insufficient Permissions";
	case NOT_FOUND: return "Not Found";
	case INSUFFICIENT_SIZE: return "Insufficient Size";
	case DRIVER_NOT_LOADED: return "Driver Not Loaded";
	case GPU_IS_LOST: return "GPU is lost";
	case IN_USE: return "In use by another client";
	case INSUFFICIENT_RESOURCES: return "Insufficient Resources";
	case ARGUMENT_VERSION_MISMATCH: return "Argument version mismatch";
	case LIB_RM_VERSION_MISMATCH: return "RM has detected an NVML/RM version mismatch.";
	default: return "Unknown Error";
	}
}
