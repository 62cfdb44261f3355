/*
 * err.h - results and the message beside them.
 *
 * A call returns 0, a negative errno or a positive NVMe status. The one who finds a fault also says, once, what
 * happened, where, why and what to do: err_set() keeps that text for the calling thread, and returns the result, so
 * that `return err_set(-EINVAL, "...")` is one line. Callers above add to it only when they know more.
 */
#ifndef TUTTI_BASE_ERR_H
#define TUTTI_BASE_ERR_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#define ERR_TEXT_BYTES 512

/* Remembers the formatted message for this thread; returns result. */
int err_set(int result, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Puts "prefix: " before the message of this thread, if there is one; returns result. */
int err_prefix(int result, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* This thread's message, "" if none. */
const char *err_text(void);
void err_clear(void);
/* Name of a result: errno text, or the NVMe status in words. Static. */
const char *err_name(int result);

/* ---- log: warnings and notes go to one callback; default none ---- */
enum { LOG_WARN = 1, LOG_NOTE = 2 };
typedef void (*log_fn)(void *arg, int level, const char *message);
void log_set(log_fn fn, void *arg);
void log_warn(const char *format, ...) __attribute__((format(printf, 1, 2)));
void log_note(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
