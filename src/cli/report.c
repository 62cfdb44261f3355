#include <inttypes.h>
#include <stdio.h>

#include "cli/report.h"

void report_add(struct report_sum *sum, const struct replay_log *log)
{
	for (size_t i = 0; i < log->n_samples; i++) {
		const struct replay_sample *s = &log->samples[i];

		if (!s->end_ns) /* never ran, or was killed in the middle */
			continue;
		sum->requests++;
		sum->tokens += s->tokens;
		sum->hit_tokens += s->hit_tokens;
		sum->output_tokens += s->output_tokens;
		sum->blocks += s->blocks;
		sum->hit_blocks += s->hit_blocks;
		sum->stored_blocks += s->stored_blocks;
		sum->others_blocks += s->others_blocks;
		sum->no_room_blocks += s->no_room_blocks;
		sum->dropped_blocks += s->dropped_blocks;
		sum->unwritten_blocks += s->unwritten_blocks;
		sum->failed_blocks += s->failed_blocks;
		sum->chunks += s->chunks;
		sum->layers += s->layers;
		sum->layers_waited += s->layers_waited;
		sum->errors += s->errors;
		sum->bytes_in += s->bytes_in;
		sum->bytes_out += s->bytes_out;
		sum->checked_bytes += s->checked_bytes;
		sum->mismatched_bytes += s->mismatched_bytes;
		sum->wait_ns += s->wait_ns;
		sum->compute_cpu_ns += s->compute_cpu_ns;
	}
	sum->wall_ns += log->end_ns > log->start_ns ? log->end_ns - log->start_ns : 0;
	sum->cpu_ns += log->cpu_ns;
	sum->in_ns += log->in.total_ns;
	sum->out_ns += log->out.total_ns;
}

double report_percent(uint64_t part, uint64_t whole) { return whole ? 100.0 * (double)part / (double)whole : 0; }

double report_gbps(uint64_t bytes, uint64_t ns) { return ns ? (double)bytes / (double)ns : 0; }

double report_cpu_per_gb(const struct report_sum *sum)
{
	uint64_t bytes = sum->bytes_in + sum->bytes_out;
	uint64_t cpu = sum->cpu_ns > sum->compute_cpu_ns ? sum->cpu_ns - sum->compute_cpu_ns : 0;

	return bytes ? (double)cpu / (double)bytes : 0;
}

int report_exit(const struct report_sum *sum, const struct replay_log *log)
{
	if (sum->mismatched_bytes || sum->failed_blocks)
		return CLI_FINDING;
	if (!sum->errors)
		return CLI_DONE;
	return cli_exit_of(log->first_result) == CLI_RESOURCE ? CLI_RESOURCE : CLI_FINDING;
}

/* ---- JSON ---- */

static void put(json_t *o, const char *name, uint64_t n) { json_object_set_new(o, name, cli_json_u64(n)); }
static void put_real(json_t *o, const char *name, double x) { json_object_set_new(o, name, json_real(x)); }

json_t *report_sum_json(const struct report_sum *s)
{
	json_t *o = json_object();

	put(o, "requests", s->requests);
	put(o, "tokens", s->tokens);
	put(o, "hit_tokens", s->hit_tokens);
	put(o, "output_tokens", s->output_tokens);
	put_real(o, "hit_ratio_tokens", report_percent(s->hit_tokens, s->tokens) / 100);
	put(o, "blocks", s->blocks);
	put(o, "hit_blocks", s->hit_blocks);
	put_real(o, "hit_ratio_blocks", report_percent(s->hit_blocks, s->blocks) / 100);
	put(o, "stored_blocks", s->stored_blocks);
	put(o, "left_to_others_blocks", s->others_blocks);
	put(o, "no_room_blocks", s->no_room_blocks);
	put(o, "dropped_blocks", s->dropped_blocks);
	put(o, "unwritten_blocks", s->unwritten_blocks);
	put(o, "failed_blocks", s->failed_blocks);
	put(o, "bytes_in", s->bytes_in);
	put(o, "bytes_out", s->bytes_out);
	put_real(o, "gbps_in", report_gbps(s->bytes_in, s->in_ns));
	put_real(o, "gbps_out", report_gbps(s->bytes_out, s->out_ns));
	put_real(o, "gbps_wall", report_gbps(s->bytes_in + s->bytes_out, s->wall_ns));
	put_real(o, "cpu_s_per_gb", report_cpu_per_gb(s));
	put_real(o, "cpu_s", (double)s->cpu_ns * 1e-9);
	put_real(o, "compute_cpu_s", (double)s->compute_cpu_ns * 1e-9);
	put_real(o, "wall_s", (double)s->wall_ns * 1e-9);
	put(o, "layers", s->layers);
	put(o, "layers_waited", s->layers_waited);
	put_real(o, "wait_s", (double)s->wait_ns * 1e-9);
	put(o, "checked_bytes", s->checked_bytes);
	put(o, "mismatched_bytes", s->mismatched_bytes);
	put(o, "errors", s->errors);
	return o;
}

static json_t *sample_json(size_t i, const struct replay_sample *s, uint64_t start_ns)
{
	json_t *o = json_object();

	put(o, "request", i);
	put(o, "document", s->document);
	put(o, "turn", s->turn);
	put_real(o, "start_s", (double)(s->start_ns - start_ns) * 1e-9);
	put_real(o, "seconds", (double)(s->end_ns - s->start_ns) * 1e-9);
	put(o, "tokens", s->tokens);
	put(o, "hit_tokens", s->hit_tokens);
	put(o, "output_tokens", s->output_tokens);
	put(o, "blocks", s->blocks);
	put(o, "hit_blocks", s->hit_blocks);
	put(o, "stored_blocks", s->stored_blocks);
	put(o, "failed_blocks", s->failed_blocks);
	put(o, "bytes_in", s->bytes_in);
	put(o, "bytes_out", s->bytes_out);
	put_real(o, "gbps_in", report_gbps(s->bytes_in, s->load_end_ns - s->load_start_ns));
	put_real(o, "gbps_out", report_gbps(s->bytes_out, s->store_end_ns - s->store_start_ns));
	put(o, "layers_waited", s->layers_waited);
	put(o, "mismatched_bytes", s->mismatched_bytes);
	put(o, "errors", s->errors);
	return o;
}

json_t *report_requests_json(const struct replay_log *log)
{
	json_t *list = json_array();

	for (size_t i = 0; i < log->n_samples; i++)
		if (log->samples[i].end_ns)
			json_array_append_new(list, sample_json(i, &log->samples[i], log->start_ns));
	return list;
}

json_t *report_ceiling_json(const struct ceiling *c)
{
	json_t *o = json_object();

	json_object_set_new(o, "how", json_string(c->how));
	if (c->runs) {
		put_real(o, "read_gbps", c->read_best / 1e9);
		put_real(o, "read_gbps_worst", c->read_worst / 1e9);
	}
	if (c->runs && c->write_best > 0) {
		put_real(o, "write_gbps", c->write_best / 1e9);
		put_real(o, "write_gbps_worst", c->write_worst / 1e9);
	}
	return o;
}

json_t *report_lane_json(const struct tutti_lane_info *info, const struct tutti_lane_stats *s)
{
	json_t *o = json_object();

	json_object_set_new(o, "controller", json_string(info->controller));
	json_object_set_new(o, "executor", json_string(info->executor));
	put(o, "sms", info->sms);
	put(o, "queue_depth", info->queue_depth);
	put(o, "mdts_bytes", info->mdts_bytes);
	put(o, "lba_bytes", info->lba_bytes);
	json_object_set_new(o, "direct_io", json_boolean(info->direct_io));
	json_object_set_new(o, "zero_copy", json_boolean(info->zero_copy));
	json_object_set_new(o, "registered", json_boolean(info->registered));
	json_object_set_new(o, "descriptors", json_string(info->sgl ? "sgl" : "prp"));
	json_object_set_new(o, "slower_because", json_string(info->why));
	put(o, "commands", s->commands);
	put(o, "objects", s->objects);
	put(o, "bytes_read", s->bytes_read);
	put(o, "bytes_written", s->bytes_written);
	put(o, "direct_bytes", s->direct_bytes);
	put(o, "bounced_bytes", s->bounced_bytes);
	put(o, "checksum_bytes", s->checksum_bytes);
	put_real(o, "checksum_s", (double)s->checksum_ns * 1e-9);
	put(o, "failed_objects", s->failed_objects);
	put(o, "retries", s->retries);
	put(o, "stores_dropped", s->stores_dropped);
	return o;
}

void report_syncs_json(json_t *o, const struct tutti_pool_info *info)
{
	put(o, "failed_syncs", info->failed_syncs);
	json_object_set_new(o, "sync_failing", json_boolean(info->sync_failing));
}

/* ---- text ---- */

void report_syncs(FILE *f, int width, const struct tutti_pool_info *info)
{
	if (info->failed_syncs)
		fprintf(f,
		        "%-*s %" PRIu64
		        " failed%s: a power loss may cost what they covered; look at the drive's health "
		        "(smartctl, dmesg), then 'tutti verify'\n",
		        width, "syncs", info->failed_syncs,
		        info->sync_failing ? ", the last one too (it is tried again)" : ", the last one worked");
}

void report_path(const struct tutti_lane_info *i, char *text, size_t bytes)
{
	snprintf(text, bytes, "%s, %s, %s, %s%s, %s, %u commands in flight", i->controller, i->executor,
	         i->direct_io ? "O_DIRECT" : "no O_DIRECT", i->zero_copy ? "zero copy" : "through bounce buffers",
	         i->registered ? ", registered memory" : "", i->sgl ? "SGL" : "PRP", i->queue_depth);
}

void report_memory(const struct tutti_standin *s, const struct tutti_standin_worker *w, uint64_t bytes, char *text,
                   size_t text_bytes)
{
	snprintf(text, text_bytes, "%s of %s%s%s", cli_size(bytes), tutti_standin_describe(s),
	         w ? ", computed by " : "", w ? tutti_standin_worker_describe(w) : "");
}

void report_requests(FILE *f, const struct replay_log *log)
{
	fprintf(f, "%7s %8s %4s %8s %6s %6s %8s %8s %7s %7s %7s %6s\n", "request", "document", "turn", "tokens",
	        "hit %", "blocks", "in", "out", "in GB/s", "out", "seconds", "waits");
	for (size_t i = 0; i < log->n_samples; i++) {
		const struct replay_sample *s = &log->samples[i];

		if (!s->end_ns)
			continue;
		fprintf(f, "%7zu %8u %4u %8u %6.1f %6u %8s %8s %7.2f %7.2f %7.3f %6u%s%s\n", i, s->document, s->turn,
		        s->tokens, report_percent(s->hit_tokens, s->tokens), s->blocks, cli_size(s->bytes_in),
		        cli_size(s->bytes_out), report_gbps(s->bytes_in, s->load_end_ns - s->load_start_ns),
		        report_gbps(s->bytes_out, s->store_end_ns - s->store_start_ns),
		        (double)(s->end_ns - s->start_ns) * 1e-9, s->layers_waited, s->errors ? "  ERROR" : "",
		        s->mismatched_bytes ? "  MISMATCH" : "");
	}
	fprintf(f, "(in, out: read from and written to the pool; GB/s: while bytes moved; waits: layers that were not\n"
	           "there when their compute could have begun)\n");
}

static void direction(FILE *f, const char *name, uint64_t bytes, uint64_t ns, const struct ceiling *c, double best)
{
	fprintf(f, "%-14s %s, %.2f GB/s while moving", name, cli_size(bytes), report_gbps(bytes, ns));
	if (c && c->runs && bytes && best > 0)
		fprintf(f, "; the disk's own: %.2f (%.0f %%)", best / 1e9, 100 * report_gbps(bytes, ns) * 1e9 / best);
	fputc('\n', f);
}

/* What became of the blocks that were computed. */
static void stored_line(FILE *f, const struct report_sum *s, const struct replay_log *log)
{
	const struct {
		uint64_t n;
		const char *why;
	} not_stored[] = {{s->others_blocks, "left to another request that was storing them"},
	                  {s->no_room_blocks, "not kept: no room"},
	                  {s->dropped_blocks, "not kept: too many stores were waiting"},
	                  {s->unwritten_blocks, "not kept: writing failed"}};

	fprintf(f, "%-14s %" PRIu64 " blocks; evicted %" PRIu64, "stored", s->stored_blocks, log->ns_info.evicted);
	for (size_t i = 0; i < sizeof(not_stored) / sizeof(not_stored[0]); i++)
		if (not_stored[i].n)
			fprintf(f, "; %" PRIu64 " %s", not_stored[i].n, not_stored[i].why);
	fputc('\n', f);
}

void report_lines(FILE *f, const struct report_sum *s, const struct replay_log *log, const struct ceiling *c)
{
	const struct tutti_lane_stats *l = &log->lane_stats;

	fprintf(f, "%-14s %" PRIu64 " in %.2f s, %" PRIu64 " prompt tokens, %" PRIu64 " answer tokens\n", "requests",
	        s->requests, (double)s->wall_ns * 1e-9, s->tokens, s->output_tokens);
	fprintf(f, "%-14s %.1f %% of tokens, %.1f %% of blocks (%" PRIu64 " of %" PRIu64 ")\n", "hit",
	        report_percent(s->hit_tokens, s->tokens), report_percent(s->hit_blocks, s->blocks), s->hit_blocks,
	        s->blocks);
	stored_line(f, s, log);
	report_syncs(f, 14, &log->pool_info);
	if (!s->bytes_in && !s->bytes_out) { /* metadata only */
		fprintf(f, "%-14s %.1f s of CPU time, %.1f s of them for keys; %" PRIu64 " errors\n", "CPU",
		        (double)s->cpu_ns * 1e-9, (double)s->compute_cpu_ns * 1e-9, s->errors);
		if (log->first_error[0])
			fprintf(f, "%-14s %s\n", "first error", log->first_error);
		return;
	}
	direction(f, "in", s->bytes_in, s->in_ns, c, c ? c->read_best : 0);
	direction(f, "out", s->bytes_out, s->out_ns, c, c ? c->write_best : 0);
	fprintf(f, "%-14s %.3f CPU seconds per GB, checksums in it (%.3f); the stand-in for compute apart (%.2f s)\n",
	        "CPU", report_cpu_per_gb(s), l->checksum_bytes ? (double)l->checksum_ns / (double)l->checksum_bytes : 0,
	        (double)s->compute_cpu_ns * 1e-9);
	fprintf(f, "%-14s %" PRIu64 " of %" PRIu64 " were waited for, %.2f s in all\n", "layers", s->layers_waited,
	        s->layers, (double)s->wait_ns * 1e-9);
	fprintf(f,
	        "%-14s %s checked byte for byte, %" PRIu64 " bytes differ; %" PRIu64 " damaged blocks, %" PRIu64
	        " errors\n",
	        "soundness", cli_size(s->checked_bytes), s->mismatched_bytes, s->failed_blocks, s->errors);
	if (log->first_wrong[0])
		fprintf(f, "%-14s %s\n", "first wrong", log->first_wrong);
	if (log->first_error[0])
		fprintf(f, "%-14s %s\n", "first error", log->first_error);
	if (c)
		fprintf(f, "%-14s %s\n", "disk's own", c->how);
	fprintf(f, "%-14s %s; bounced %s\n", "moved direct", cli_size(l->direct_bytes), cli_size(l->bounced_bytes));
}
