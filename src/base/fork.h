/*
 * fork.h - what a child made by fork must not keep, and how to tell that one is such a child.
 *
 * A child shares its parent's open files, and with them the locks that say who has a pool, files that were removed, and
 * a ring with all memory that is registered with it. One that lives on would hold all that long after its parent is
 * gone. So every child closes, at once, the descriptors that are named here. (O_CLOEXEC helps only who calls exec.)
 * What is made without fork's handlers (_Fork, clone) keeps them.
 *
 * Between opening a descriptor and naming it no child may be made, nor between forgetting and closing it: fork waits
 * for one lock, which is held for the length of such a pair and goes round, so that neither forks nor opens starve the
 * other. Nothing else is locked under it and nobody is called back.
 * As both sides wait at most 5 s, neither a disk that never answers nor a lock of the application, held in its own
 * fork handlers, stops anybody for good: then a child may keep that one descriptor.
 */
#ifndef TUTTI_BASE_FORK_H
#define TUTTI_BASE_FORK_H

#include <stdint.h>
#include <sys/types.h>

/* open and close, of a descriptor that children close. errno is that of open, and stays in close. Any thread. */
int fork_open(const char *path, int flags, mode_t mode);
void fork_close(int fd);
/* For what is opened and closed in other ways: between the two no child is made. They nest. errno stays. */
void fork_hold(void);
void fork_let(void);
/* Children close it; returns fd. What is negative is only returned, and where no page can be mapped any is. Held; errno
 * stays. */
int fork_guard(int fd);
/* Not any more, for it is closed next. Returns fd. Held; errno stays. */
int fork_unguard(int fd);
/* Forks between the process that loaded the library and this one. A handle that remembers another number is the
 * parent's. */
uint32_t fork_depth(void);

#endif
