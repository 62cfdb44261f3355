/* party.c - see party.h. */
#include "core/party.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

void party_start(struct party *all, uint32_t n, uint32_t who, void (*serve)(uint32_t who, int fd))
{
	int pair[2];

	fflush(stdout);
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) || (all[who].pid = fork()) < 0) {
		perror("party");
		exit(1);
	}
	if (all[who].pid == 0) {
		for (uint32_t k = 0; k < n; k++)
			if (k != who && all[k].pid > 0)
				close(all[k].sock); /* else nobody would see the end of a dead one's socket */
		close(pair[0]);
		serve(who, pair[1]);
		_exit(0);
	}
	close(pair[1]);
	all[who].sock = pair[0];
}

void party_stop(struct party *p, int sig)
{
	if (p->pid <= 0)
		return;
	if (sig)
		kill(p->pid, sig);
	close(p->sock);
	p->sock = -1;
	waitpid(p->pid, NULL, 0);
	p->pid = 0;
}

int party_footprint(pid_t pid, uint64_t *resident_bytes, uint64_t *descriptors)
{
	unsigned long whole, resident;
	char path[64];
	DIR *dir;
	FILE *f;
	int n;

	snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
	dir = opendir(path);
	if (!dir)
		return -errno;
	for (*descriptors = 0; readdir(dir);)
		++*descriptors; /* with "." and ".." */
	*descriptors -= 2;
	closedir(dir);
	snprintf(path, sizeof(path), "/proc/%d/statm", (int)pid);
	f = fopen(path, "r");
	if (!f)
		return -errno;
	n = fscanf(f, "%lu %lu", &whole, &resident);
	fclose(f);
	*resident_bytes = resident * (uint64_t)sysconf(_SC_PAGESIZE);
	return n == 2 ? 0 : -EIO;
}
