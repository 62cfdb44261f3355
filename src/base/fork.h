/*
 * fork.h - what a child made by fork must not keep, and how to tell that one is such a child.
 *
 * A child shares its parent's open files, and with them the locks that say who has a pool, files that were removed, and
 * a ring with all memory that is registered with it. One that lives on would hold all that long after its parent is
 * gone. So every child closes, at once, the descriptors that are named here. (O_CLOEXEC helps only who calls exec.)
 * What is made without fork's handlers (_Fork, clone) keeps them.
 */
#ifndef TUTTI_BASE_FORK_H
#define TUTTI_BASE_FORK_H

#include <stdint.h>

/* Children close it; returns fd. What is negative, or above 65535, is only returned. errno stays. Any thread. */
int fork_guard(int fd);
/* Not any more: call it before fd is closed. Returns fd; errno stays. Any thread. */
int fork_unguard(int fd);
/*
 * Forks between the process that first guarded a descriptor and this one. A handle that remembers another number is
 * the parent's.
 */
uint32_t fork_depth(void);

#endif
