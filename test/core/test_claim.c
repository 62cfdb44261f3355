/*
 * test_claim.c - a claim or a release that dies at any of its steps: a release puts everything back.
 *
 * Runs as root where a drive is named that may be taken from the kernel: TUTTI_TEST_CLAIM="0000:00:03.0 SERIAL 4"
 * (4: its namespaces).
 * tools/nvme-guest runs it in a virtual machine.
 */
#include <errno.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "core/note.h"

#define STEPS_MAX 10

static char function[32], serial[32];
static unsigned namespaces;
static int steps_left;

static void die_here(void)
{
	if (steps_left-- == 0)
		kill(getpid(), SIGKILL);
}

/* 1: it died at that step. 0: it was over before. */
static int dies(int (*act)(int by), int by, int at_step)
{
	int status;
	pid_t pid;

	fflush(NULL);
	pid = fork();
	if (!pid) {
		steps_left = at_step;
		core_before_step = die_here;
		_exit(act(by) ? 1 : 0);
	}
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	CHECK(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
	return WIFSIGNALED(status);
}

static int claim(int by) { return tutti_nvme_claim(function, serial, (enum tutti_nvme_driver)by); }

static int release(int by)
{
	(void)by;
	return tutti_nvme_release(function);
}

static int is_ours(void *arg, const struct tutti_nvme *n)
{
	struct tutti_nvme *out = arg;

	if (!strcmp(n->function, function))
		*out = *n;
	return 0;
}

static struct tutti_nvme state(void)
{
	struct tutti_nvme n = {0};

	CHECK_EQ(tutti_nvme_list(is_ours, &n), 0);
	CHECK(!strcmp(n.function, function));
	return n;
}

/* The kernel has the drive, and knows it. */
static int with_kernel(void)
{
	char path[96];

	snprintf(path, sizeof(path), "/run/tutti/claim-%s", function);
	for (int i = 0; i < 200; i++) {
		struct tutti_nvme n = state();

		if (!strcmp(n.driver, "nvme") && !strcmp(n.serial, serial) && n.namespaces == namespaces &&
		    !n.in_use[0])
			return !n.claimed && access(path, F_OK);
		usleep(50000); /* its driver looks at the drive in the background and tells nobody */
	}
	return 0;
}

static int need(void)
{
	const char *given = getenv("TUTTI_TEST_CLAIM");

	if (!given || sscanf(given, "%31s %31s %u", function, serial, &namespaces) != 3)
		CHECK_SKIP("no drive to take from the kernel is named in TUTTI_TEST_CLAIM");
	return access("/sys/bus/pci/drivers/tutti_nvme", F_OK) ? 1 : 2;
}

/* vfio-pci takes nothing that is behind no IOMMU. */
static int vfio_there(void)
{
	char path[96];

	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/iommu_group", function);
	return access(path, F_OK) == 0;
}

static void claim_dies_anywhere(void)
{
	int ways = need();

	for (int by = vfio_there() ? 0 : 1; by < ways; by++)
		for (int at = 0; at < STEPS_MAX; at++) {
			int died = dies(claim, by, at);

			CHECK_EQ(tutti_nvme_release(function), 0);
			CHECK(with_kernel());
			CHECK_EQ(tutti_nvme_release(function), -EALREADY);
			if (!died) {
				CHECK(at >= 3);
				break;
			}
		}
}

static void release_dies_anywhere(void)
{
	int ways = need();

	for (int by = vfio_there() ? 0 : 1; by < ways; by++)
		for (int at = 0; at < STEPS_MAX; at++) {
			int died;

			CHECK_EQ(claim(by), 0);
			died = dies(release, 0, at);
			if (died)
				CHECK_EQ(tutti_nvme_release(function), 0);
			CHECK(with_kernel());
			if (!died) {
				CHECK(at >= 3);
				break;
			}
		}
}

/* What a claimed drive is can still be read, by root alone. */
static void list_remembers(void)
{
	int ways = need();
	struct tutti_nvme before, n;
	struct stat st;
	char path[96];

	CHECK(with_kernel());
	before = state();
	for (int by = vfio_there() ? 0 : 1; by < ways; by++) {
		CHECK_EQ(claim(by), 0);
		n = state();
		CHECK(n.claimed && !strcmp(n.serial, serial) && !strcmp(n.model, before.model));
		CHECK(n.bytes == before.bytes && n.namespaces == before.namespaces);
		snprintf(path, sizeof(path), "/run/tutti/claim-%s", function);
		CHECK_EQ(stat(path, &st), 0);
		CHECK_EQ(st.st_mode & 0777, 0600);
		CHECK_EQ(claim(by), -EALREADY);
		CHECK_EQ(tutti_nvme_release(function), 0);
		CHECK(with_kernel());
	}
}

int main(void)
{
	CHECK_RUN(list_remembers);
	CHECK_RUN(claim_dies_anywhere);
	CHECK_RUN(release_dies_anywhere);
	return check_end();
}
