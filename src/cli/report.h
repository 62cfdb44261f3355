/*
 * report.h - what a replay comes to: sums over requests, as text and as JSON.
 */
#ifndef TUTTI_CLI_REPORT_H
#define TUTTI_CLI_REPORT_H

#include "cli/ceiling.h"
#include "cli/cli.h"
#include "cli/replay.h"

struct report_sum {
	uint64_t requests, tokens, hit_tokens, output_tokens, blocks, hit_blocks, stored_blocks;
	uint64_t others_blocks, no_room_blocks, dropped_blocks, unwritten_blocks;
	uint64_t failed_blocks, chunks, layers, layers_waited, errors;
	uint64_t bytes_in, bytes_out, checked_bytes, mismatched_bytes, wait_ns, compute_cpu_ns;
	uint64_t wall_ns, cpu_ns, in_ns, out_ns;
};

void report_add(struct report_sum *sum, const struct replay_log *log);
/* Percent; 0 of nothing. */
double report_percent(uint64_t part, uint64_t whole);
/* Bytes and nanoseconds to GB/s (10^9). */
double report_gbps(uint64_t bytes, uint64_t ns);
/* CPU seconds of the process per GB moved, without what a GPU would do (keys, filling, comparing). */
double report_cpu_per_gb(const struct report_sum *sum);

json_t *report_sum_json(const struct report_sum *sum);
json_t *report_requests_json(const struct replay_log *log);
json_t *report_ceiling_json(const struct ceiling *c);
json_t *report_lane_json(const struct tutti_lane_info *info, const struct tutti_lane_stats *stats);
void report_requests(FILE *f, const struct replay_log *log);
/* "virt on threads, O_DIRECT, zero copy, SGL, 64 commands in flight" */
void report_path(const struct tutti_lane_info *info, char *text, size_t bytes);
/* "1GiB of host memory, computed by the calling thread"; standin NULL: by nobody. */
void report_memory(const struct tutti_standin *s, const struct tutti_standin_worker *w, uint64_t bytes, char *text,
                   size_t text_bytes);
void report_lines(FILE *f, const struct report_sum *sum, const struct replay_log *log, const struct ceiling *c);
/* Syncs that failed, and what to do; nothing where none did. width: of the first column. */
void report_syncs(FILE *f, int width, const struct tutti_pool_info *info);
/* Puts them into an object: failed_syncs, sync_failing. */
void report_syncs_json(json_t *o, const struct tutti_pool_info *info);
/* The exit status that it comes to: a finding, or what the first error was. */
int report_exit(const struct report_sum *sum, const struct replay_log *log);

#endif
