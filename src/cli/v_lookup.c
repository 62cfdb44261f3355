/*
 * v_lookup.c - tutti lookup: how much of a chain of keys, or of token ids, a pool holds.
 */
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/pool.h"

#define KEYS_MAX (1u << 20)
#define TOKENS_MAX (16u << 20)

struct lookup_args {
	uint64_t ns;
	const char *tokens;
	const char *keys;
};
static const struct lookup_args lookup_defaults = {.ns = CLI_NS_DEFAULT};
#define AT(field) offsetof(struct lookup_args, field)
static const struct cli_option lookup_options[] = {
    {"namespace", 'n', CLI_COUNT, AT(ns), "N", NULL, 0, UINT32_MAX,
     "The namespace's number, as 'tutti info' shows it. Default 0."},
    {"tokens", 't', CLI_TEXT, AT(tokens), "FILE", NULL, 0, 0,
     "Token ids of a prompt, separated by spaces, commas or lines; '-' is stdin. Their keys are computed."},
    {"keys", 'k', CLI_TEXT, AT(keys), "FILE", NULL, 0, 0,
     "Keys of a chain, first block first, as 64 hex digits each; '-' is stdin."},
};

/* The next word of f, separated by white space and commas: its length, 0 at the end, -1 if longer than room. */
static int next_word(FILE *f, char *word, size_t room)
{
	size_t n = 0;
	int c;

	while ((c = getc(f)) != EOF && (isspace(c) || c == ','))
		;
	for (; c != EOF && !isspace(c) && c != ','; c = getc(f)) {
		if (n + 1 >= room)
			return -1;
		word[n++] = (char)c;
	}
	word[n] = 0;
	return (int)n;
}

static int parse_key(const char *word, struct tutti_key *key)
{
	if (strlen(word) != 2 * TUTTI_KEY_BYTES || strspn(word, "0123456789abcdefABCDEF") != 2 * TUTTI_KEY_BYTES)
		return -EINVAL;
	for (size_t i = 0; i < TUTTI_KEY_BYTES; i++) {
		char two[3] = {word[2 * i], word[2 * i + 1], 0};

		key->b[i] = (uint8_t)strtoul(two, NULL, 16);
	}
	return 0;
}

static int parse_token(const char *word, uint32_t *token)
{
	size_t n = strlen(word);

	if (n > 10 || strspn(word, "0123456789") != n || strtoull(word, NULL, 10) > UINT32_MAX)
		return -EINVAL;
	*token = (uint32_t)strtoull(word, NULL, 10);
	return 0;
}

/* Reads words into an array that grows to `most` items. Says what is wrong; NULL then. */
static void *read_items(const struct cli_call *call, const char *name, int keys, size_t most, size_t *n, int *status)
{
	FILE *f = strcmp(name, "-") == 0 ? stdin : fopen(name, "r");
	size_t item = keys ? sizeof(struct tutti_key) : sizeof(uint32_t), room = 1024;
	char *items = malloc(room * item), *more, word[80];
	int got = 0, bad = 0;

	*n = 0;
	if (!f)
		*status =
		    cli_complain(call, cli_exit_of(-errno), "cannot read %s: %s; --tokens and --keys name a file%s",
		                 name, strerror(errno), keys ? "" : ", '-' is stdin: echo 1 2 3 | tutti lookup ...");
	while (f && items && !bad && (got = next_word(f, word, sizeof(word))) > 0 && *n < most) {
		if (*n == room) {
			more = realloc(items, 2 * room * item);
			if (!more)
				break;
			items = more;
			room *= 2;
		}
		bad =
		    keys ? parse_key(word, (struct tutti_key *)items + *n) : parse_token(word, (uint32_t *)items + *n);
		*n += !bad;
	}
	if (f && ferror(f))
		*status = cli_complain(call, cli_exit_of(-errno), "%s: %s", name, strerror(errno));
	else if (bad || got < 0)
		*status = cli_complain(call, CLI_USAGE, "%s: word %zu is not a %s", name, *n + 1,
		                       keys ? "key of 64 hex digits" : "token id from 0 to 4294967295");
	else if (got > 0)
		*status = cli_complain(call, CLI_USAGE, "%s: more than %zu words", name, most);
	if (f && f != stdin)
		fclose(f);
	if (*status != CLI_DONE) {
		free(items);
		return NULL;
	}
	return items;
}

/* *n: tokens in, keys out. */
static struct tutti_key *keys_of_tokens(const struct cli_call *call, struct tutti_ns *ns, const uint32_t *tokens,
                                        size_t *n, int *status)
{
	struct tutti_key *keys = NULL, digest;
	struct tutti_ns_info info;
	int result;

	result = tutti_ns_get_info(ns, &info);
	if (!result) {
		memcpy(digest.b, info.digest, sizeof(digest.b));
		*n /= info.block_tokens;
		keys = calloc(*n + 1, sizeof(*keys));
		result = keys ? tutti_keys(&digest, NULL, tokens, info.block_tokens, NULL, *n, keys) : -ENOMEM;
	}
	if (!result)
		return keys;
	*status = cli_fail(call, result, "computing keys");
	free(keys);
	return NULL;
}

static int show(const struct cli_call *call, const struct tutti_key *keys, size_t n, size_t matched)
{
	if (call->json) {
		cli_print_json(json_pack("{s:o, s:o, s:s?}", "blocks", cli_json_u64(n), "matched",
		                         cli_json_u64(matched), "last_key",
		                         matched ? cli_hex(keys[matched - 1].b, 32) : NULL));
		return CLI_DONE;
	}
	printf("%zu of %zu blocks are in the pool\n", matched, n);
	if (matched)
		printf("the last of them: %s\n", cli_hex(keys[matched - 1].b, 32));
	return CLI_DONE;
}

static int run_lookup(const struct cli_call *call)
{
	const struct lookup_args *a = call->args;
	struct tutti_key *keys = NULL;
	size_t n = 0, matched = 0;
	struct tutti_store *s;
	struct tutti_ns *ns;
	int status = CLI_DONE, result;
	void *items;

	if (!a->tokens == !a->keys)
		return cli_complain(call, CLI_USAGE, "say what to look up: --tokens FILE or --keys FILE");
	/* Read before the pool is opened: whoever writes into our stdin may have it open until then. */
	items = read_items(call, a->keys ? a->keys : a->tokens, a->keys != NULL, a->keys ? KEYS_MAX : TOKENS_MAX, &n,
	                   &status);
	if (!items)
		return status;
	s = cli_pool_open(call, call->operands, call->n_operands, &status);
	if (!s) {
		free(items);
		return status;
	}
	ns = cli_pool_ns(call, s, a->ns, &status);
	if (ns && a->keys) {
		keys = items;
		items = NULL;
	} else if (ns) {
		keys = keys_of_tokens(call, ns, items, &n, &status);
	}
	free(items);
	if (keys) {
		result = n ? tutti_lookup(ns, keys, n, 0, &matched, NULL) : 0;
		status = result ? cli_fail(call, result, "looking up") : show(call, keys, n, matched);
	} else if (!ns && status == CLI_DONE) { /* an empty pool; how many blocks tokens make is a namespace's matter */
		status = show(call, NULL, a->keys ? n : 0, 0);
	}
	free(keys);
	return cli_pool_close(call, s, status);
}

const struct cli_verb verb_lookup = {
    .name = "lookup",
    .operands = "POOL...",
    .summary = "Say how long a prefix of a prompt a pool holds.",
    .description =
        "Takes a chain of keys, or the token ids of a prompt, and prints how many leading blocks are in the pool. "
                   "Reads no payload. A miss is an answer, not a fault: exit status 0." CLI_POOL_HELP,
    .example = "tutti lookup --tokens prompt.txt /var/cache/kv.pool\n"
               "tutti ls /var/cache/kv.pool | head -1 | cut -d' ' -f1 | tutti lookup --keys - /var/cache/kv.pool",
    .options = lookup_options,
    .n_options = sizeof(lookup_options) / sizeof(lookup_options[0]),
    .operands_min = 1,
    .operands_max = TUTTI_DEVICES_MAX,
    .args_bytes = sizeof(struct lookup_args),
    .defaults = &lookup_defaults,
    .run = run_lookup,
};
