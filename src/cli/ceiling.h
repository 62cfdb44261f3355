/*
 * ceiling.h - what the disk itself gives: a plain loop of large O_DIRECT reads and writes over blocks that exist
 * already, in a file of its own beside the pool. Of a whole drive (nvme:) the same loop of reads, through queues of its
 * own; nothing is written there, because all of it is the pool's. Stands next to our figures, taken in the same run.
 */
#ifndef TUTTI_CLI_CEILING_H
#define TUTTI_CLI_CEILING_H

#include <stddef.h>
#include <stdint.h>

struct ceiling {
	char path[4096];
	int fd;
	int drive; /* path is a whole drive */
	struct gio *gio;
	uint8_t *memory;
	uint64_t bytes;
	uint32_t runs;
	double read_best, read_worst, write_best, write_worst; /* bytes a second; 0: not measured */
	char how[320]; /* how it was measured, or why it could not be */
};

/* Makes and fills the file, in the folder of `beside`; of a drive, remembers it. Fails softly: `how` then says why. */
void ceiling_open(struct ceiling *c, const char *beside, uint64_t bytes);
/* One more measurement, half a second each way. */
void ceiling_measure(struct ceiling *c);
void ceiling_close(struct ceiling *c);

#endif
