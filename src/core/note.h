/*
 * note.h - what a claimed drive is, written down at the claim: the kernel can't say it any more, and a release
 * after a crash has to know whose the drive was. Files of root alone in /run/tutti, gone with a reboot, as a claim is.
 */
#ifndef TUTTI_CORE_NOTE_H
#define TUTTI_CORE_NOTE_H

#include "tutti/tutti.h"

/* Before anything is changed. n->driver: who has it now. 0, -errno. */
int core_note_write(const struct tutti_nvme *n);
/* Fills in model, serial, namespaces and bytes; former: the driver from before. -ENOENT: none, or not for this user. */
int core_note_read(const char *function, struct tutti_nvme *n, char former[32]);
void core_note_remove(const char *function);

/* For tests: called before each change that a claim or a release makes, which may be the last thing that happens. */
extern void (*core_before_step)(void);

#endif
