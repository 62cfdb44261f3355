/* thread.h - threads of the library's own. */
#ifndef TUTTI_BASE_THREAD_H
#define TUTTI_BASE_THREAD_H

#include <pthread.h>

/*
 * pthread_create for a thread that takes no signal: signals are the application's, from the thread's first instruction
 * on. 0, or a negative errno without a message. Any thread.
 */
int thread_start(pthread_t *t, void *(*fn)(void *), void *arg);

#endif
