/*
 * party.h - a process of a test that answers messages on a socket, and can be killed in the middle of it.
 */
#ifndef TUTTI_TEST_CORE_PARTY_H
#define TUTTI_TEST_CORE_PARTY_H

#include <stdint.h>
#include <sys/types.h>

struct party {
	pid_t pid; /* 0: none */
	int sock;  /* messages keep their bounds; -1: none */
};

/*
 * Forks: the child runs serve(who, fd) and ends as in a crash, without destructors. all: the n parties of the test, of
 * which this is number `who`; the child closes the sockets of the others. Exits the program when it can't be had.
 */
void party_start(struct party *all, uint32_t n, uint32_t who, void (*serve)(uint32_t who, int fd));
/* Waits for its end, after that signal (0: none) and the closing of its socket. One that is not there is fine. */
void party_stop(struct party *p, int sig);
/* What a process holds: resident memory, descriptors. 0, or -errno. */
int party_footprint(pid_t pid, uint64_t *resident_bytes, uint64_t *descriptors);

#endif
