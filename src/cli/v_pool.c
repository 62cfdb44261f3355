/*
 * v_pool.c - verbs that open a pool to look into it or to mend it: ls, verify, clear.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/pool.h"

/* ---- ls ---- */

struct ls_args {
	uint64_t ns, limit;
};
static const struct ls_args ls_defaults = {.ns = CLI_NS_DEFAULT};
static const struct cli_option ls_options[] = {
    {"namespace", 'n', CLI_COUNT, offsetof(struct ls_args, ns), "N", NULL, 0, UINT32_MAX,
     "The namespace's number, as 'tutti info' shows it. Default 0."},
    {"limit", 'l', CLI_COUNT, offsetof(struct ls_args, limit), "N", NULL, 0, 0,
     "Stop after N blocks. 0 (default): all."},
};

struct ls_line {
	struct tutti_key key, parent;
	uint32_t depth, slot;
};

struct ls_state {
	struct ls_line *lines;
	uint64_t n, room, most;
};

static int ls_block(void *arg, const struct tutti_key *key, const struct tutti_key *parent, uint32_t depth,
                    uint32_t slot)
{
	struct ls_state *st = arg;

	if (st->n == st->room) {
		uint64_t room = st->room ? st->room * 2 : 1024;
		struct ls_line *more = realloc(st->lines, room * sizeof(*more));

		if (!more)
			return -ENOMEM;
		st->lines = more;
		st->room = room;
	}
	st->lines[st->n++] = (struct ls_line){*key, *parent, depth, slot};
	return st->n == st->most;
}

static const char *ls_parent(const struct ls_line *l)
{
	static const struct tutti_key none;

	return memcmp(&l->parent, &none, sizeof(none)) ? cli_hex(l->parent.b, 32) : NULL;
}

static void ls_print(const struct cli_call *call, uint64_t number, const struct ls_state *st)
{
	json_t *list = json_array();

	for (uint64_t i = 0; i < st->n; i++) {
		const struct ls_line *l = &st->lines[i];
		const char *parent = ls_parent(l);

		if (call->json)
			json_array_append_new(list,
			                      json_pack("{s:s, s:s?, s:i, s:o}", "key", cli_hex(l->key.b, 32), "parent",
			                                parent, "depth", (int)l->depth, "slot", cli_json_u64(l->slot)));
		else
			printf("%s %s %6u %8u\n", cli_hex(l->key.b, 32), parent ? parent : "-", l->depth, l->slot);
	}
	if (call->json)
		cli_print_json(json_pack("{s:o, s:O}", "namespace", cli_json_u64(number), "blocks", list));
	json_decref(list);
}

static int run_ls(const struct cli_call *call)
{
	const struct ls_args *a = call->args;
	struct ls_state st = {.most = a->limit};
	struct tutti_store *s;
	struct tutti_ns *ns;
	int status = CLI_DONE, result = 0;

	s = cli_pool_open(call, call->operands, call->n_operands, &status);
	if (!s)
		return status;
	ns = cli_pool_ns(call, s, a->ns, &status);
	if (ns)
		result = tutti_ns_each(ns, ls_block, &st);
	if (result < 0)
		status = cli_fail(call, result, "listing blocks");
	/* Closed before the first line is out: who reads it may open the pool. */
	status = cli_pool_close(call, s, status);
	if (status == CLI_DONE)
		ls_print(call, a->ns == CLI_NS_DEFAULT ? 0 : a->ns, &st);
	free(st.lines);
	return status;
}

const struct cli_verb verb_ls = {
    .name = "ls",
    .operands = "POOL...",
    .summary = "List the committed blocks of a namespace.",
    .description =
        "Prints a line for each committed block: key, parent key ('-' for the first block of a chain), depth in its "
                   "chain, slot. In no order." CLI_POOL_HELP,
    .example = "tutti ls --limit 10 /var/cache/kv.pool",
    .options = ls_options,
    .n_options = sizeof(ls_options) / sizeof(ls_options[0]),
    .operands_min = 1,
    .operands_max = TUTTI_DEVICES_MAX,
    .args_bytes = sizeof(struct ls_args),
    .defaults = &ls_defaults,
    .run = run_ls,
};

/* ---- verify ---- */

struct verify_args {
	uint64_t ns;
	int repair;
};
static const struct verify_args verify_defaults = {.ns = CLI_NS_DEFAULT};
static const struct cli_option verify_options[] = {
    {"namespace", 'n', CLI_COUNT, offsetof(struct verify_args, ns), "N", NULL, 0, UINT32_MAX,
     "Only this namespace. Default: all."},
    {"repair", 0, CLI_FLAG, offsetof(struct verify_args, repair), NULL, NULL, 0, 0,
     "Take damaged blocks, and those that build on them, out of the pool; without --namespace, also wipe records and "
     "headers that are lost."},
};

static int verify_ns(const struct cli_call *call, struct tutti_store *s, uint32_t i, int repair, json_t *list,
                     uint64_t *bad)
{
	uint64_t checked = 0, ns_bad = 0, gone = 0;
	struct tutti_ns_info info, after;
	struct tutti_ns *ns;
	int status = CLI_DONE, result;

	ns = cli_pool_ns(call, s, i, &status);
	if (!ns)
		return status;
	result = tutti_ns_get_info(ns, &info);
	if (!result)
		result = tutti_verify(ns, repair, cli_progress, NULL, &checked, &ns_bad);
	cli_progress_end();
	if (result && !ns_bad)
		return cli_fail(call, result, "verifying");
	*bad += ns_bad;
	/* What hangs below a damaged block can't be reached without it, and goes with it. */
	if (repair && !tutti_ns_get_info(ns, &after) && after.committed < info.committed)
		gone = info.committed - after.committed;
	json_array_append_new(list, json_pack("{s:i, s:s, s:o, s:o, s:o}", "namespace", (int)i, "model", info.model,
	                                      "checked", cli_json_u64(checked), "damaged", cli_json_u64(ns_bad),
	                                      "taken_out", cli_json_u64(gone)));
	if (!call->json && gone)
		printf("namespace %u, %s: %" PRIu64 " blocks checked, %" PRIu64 " damaged; %" PRIu64
		       " taken out, those below the damaged ones included\n",
		       i, info.model, checked, ns_bad, gone);
	else if (!call->json)
		printf("namespace %u, %s: %" PRIu64 " blocks checked, %" PRIu64 " damaged\n", i, info.model, checked,
		       ns_bad);
	return CLI_DONE;
}

/* What the open found damaged outside of blocks. */
static void print_found(const struct tutti_pool_info *i, int repaired)
{
	if (i->damaged_records || i->recovered_bad)
		printf("lost when the pool was opened: %" PRIu64 " records of namespaces or segments, %" PRIu64
		       " headers of blocks were damaged%s\n",
		       i->damaged_records, i->recovered_bad, repaired ? "; they are wiped" : "");
	if (i->healed_copies)
		printf("healed when the pool was opened: %u superblocks or records had a damaged copy; nothing was "
		       "lost, the other one was written over it\n",
		       i->healed_copies);
}

static int run_verify(const struct cli_call *call)
{
	const struct verify_args *a = call->args;
	struct tutti_pool_info info = {0};
	uint64_t bad = 0, wiped = 0, first, last;
	int status = CLI_DONE, failed, result;
	struct tutti_store *s;
	json_t *list;

	s = cli_pool_open(call, call->operands, call->n_operands, &status);
	if (!s)
		return status;
	list = json_array();
	tutti_store_info(s, &info);
	first = a->ns == CLI_NS_DEFAULT ? 0 : a->ns;
	last = a->ns == CLI_NS_DEFAULT ? info.n_namespaces : a->ns + 1;
	for (uint64_t i = first; i < last && status == CLI_DONE; i++)
		status = verify_ns(call, s, (uint32_t)i, a->repair, list, &bad);
	if (status == CLI_DONE && a->repair && a->ns == CLI_NS_DEFAULT) {
		result = tutti_store_repair(s, &wiped);
		status = result ? cli_fail(call, result, "repairing") : CLI_DONE;
	}
	failed = status != CLI_DONE; /* and said so */
	if (status == CLI_DONE && (bad || cli_pool_damage(&info)))
		status = CLI_FINDING;
	if (!call->json)
		print_found(&info, a->repair && a->ns == CLI_NS_DEFAULT && !failed);
	if (!call->json && !info.n_namespaces && !failed)
		printf("the pool is empty\n");
	if (!call->json && bad && !a->repair)
		fprintf(stderr,
		        "tutti verify: %" PRIu64 " damaged blocks; they are never given back, only take space. "
		        "'tutti verify --repair' takes them out.\n",
		        bad);
	if (call->json && !failed)
		cli_print_json(json_pack("{s:O, s:o, s:o, s:o, s:o, s:o, s:b}", "namespaces", list, "damaged",
		                         cli_json_u64(bad), "lost_records", cli_json_u64(info.damaged_records),
		                         "lost_headers", cli_json_u64(info.recovered_bad), "healed_copies",
		                         cli_json_u64(info.healed_copies), "wiped", cli_json_u64(wiped), "repaired",
		                         a->repair));
	json_decref(list);
	return cli_pool_close(call, s, status);
}

const struct cli_verb verb_verify = {
    .name = "verify",
    .operands = "POOL...",
    .summary = "Read and check every block of a pool.",
    .description =
        "Reads every committed block and compares headers and checksums, and says what of the pool's own records was "
        "damaged when it was opened. Exit status 1 if anything was, repaired or not; what is repaired is not found "
        "again. CPU threads do the reading, whatever executor the engine uses." CLI_POOL_HELP,
    .example = "tutti verify --repair /var/cache/kv.pool",
    .options = verify_options,
    .n_options = sizeof(verify_options) / sizeof(verify_options[0]),
    .operands_min = 1,
    .operands_max = TUTTI_DEVICES_MAX,
    .args_bytes = sizeof(struct verify_args),
    .defaults = &verify_defaults,
    .run = run_verify,
};

/* ---- clear ---- */

struct clear_args {
	uint64_t ns;
	int all, remove;
};
static const struct clear_args clear_defaults = {.ns = CLI_NS_DEFAULT};
static const struct cli_option clear_options[] = {
    {"namespace", 'n', CLI_COUNT, offsetof(struct clear_args, ns), "N", NULL, 0, UINT32_MAX, "Empty this namespace."},
    {"all", 'a', CLI_FLAG, offsetof(struct clear_args, all), NULL, NULL, 0, 0, "Empty every namespace."},
    {"remove", 0, CLI_FLAG, offsetof(struct clear_args, remove), NULL, NULL, 0, 0,
     "Also take it out of the pool's list, which has room for 64 namespaces."},
};

static int run_clear(const struct cli_call *call)
{
	const struct clear_args *a = call->args;
	struct tutti_pool_info info = {0};
	uint64_t first, last, dropped = 0;
	struct tutti_store *s;
	int status = CLI_DONE, result = 0;

	if ((a->ns == CLI_NS_DEFAULT) == !a->all)
		return cli_complain(call, CLI_USAGE, "say what to empty: --namespace N, or --all");
	s = cli_pool_open(call, call->operands, call->n_operands, &status);
	if (!s)
		return status;
	tutti_store_info(s, &info);
	first = a->all ? 0 : a->ns;
	last = a->all ? info.n_namespaces : a->ns + 1;
	for (uint64_t i = first; i < last && status == CLI_DONE; i++) {
		/* Those behind a removed one move up. */
		struct tutti_ns *ns = cli_pool_ns(call, s, a->remove ? first : i, &status);
		struct tutti_ns_info n;

		if (!ns)
			break;
		result = tutti_ns_get_info(ns, &n);
		if (!result)
			result = a->remove ? tutti_ns_remove(ns) : tutti_ns_clear(ns);
		if (result)
			status = cli_fail(call, result, "clearing");
		else
			dropped += n.committed;
	}
	if (status == CLI_DONE && call->json)
		cli_print_json(
		    json_pack("{s:o, s:o}", "namespaces", cli_json_u64(last - first), "blocks", cli_json_u64(dropped)));
	else if (status == CLI_DONE)
		printf("%" PRIu64 " namespace%s %s, %" PRIu64 " blocks\n", last - first, last - first == 1 ? "" : "s",
		       a->remove ? "removed" : "emptied", dropped);
	return cli_pool_close(call, s, status);
}

const struct cli_verb verb_clear = {
    .name = "clear",
    .operands = "POOL...",
    .summary = "Empty a namespace, or all of them.",
    .description =
        "Empties a namespace at once, durably; its space comes back as it is needed. With --remove it also leaves the "
        "list of namespaces. The pool's size and its other namespaces stay as they are." CLI_POOL_HELP,
    .example = "tutti clear --namespace 0 /var/cache/kv.pool",
    .options = clear_options,
    .n_options = sizeof(clear_options) / sizeof(clear_options[0]),
    .operands_min = 1,
    .operands_max = TUTTI_DEVICES_MAX,
    .args_bytes = sizeof(struct clear_args),
    .defaults = &clear_defaults,
    .run = run_clear,
};
