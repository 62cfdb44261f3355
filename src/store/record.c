/*
 * record.c - the canonical record of a namespace: every fact that changes what the bytes mean, once, in one order.
 *
 *     "TUTTI-NS" | version (32 bits) | for each field: length (32 bits) | bytes
 *
 * Numbers are little endian. One list below gives the order for writing, parsing and the messages. No length is free
 * and nothing may follow, so there is exactly one record for the same facts, and the parser accepts no other.
 */
#include "store/state.h"

#include "base/err.h"
#include "base/hash.h"

#include <errno.h>
#include <string.h>

#define RECORD_MAGIC "TUTTI-NS"
#define RECORD_MAGIC_BYTES 8u
#define RECORD_VERSION 1u
#define TEXT_BYTES_MAX 255u

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "records are read and written as they lie");

struct field {
	const char *name;
	enum { TEXT, DIGEST, NUMBER32, NUMBER64 } kind;
	size_t in_spec, in_facts;
};

#define FIELD(kind, name)                                                                                              \
	{                                                                                                              \
#name, kind, offsetof(struct tutti_ns_spec, name), offsetof(struct store_ns_facts, name)               \
	}
static const struct field fields[] = {
    FIELD(TEXT, model),
    FIELD(DIGEST, weights),
    FIELD(TEXT, kv_dtype),
    FIELD(TEXT, backend),
    FIELD(DIGEST, layout),
    FIELD(NUMBER32, block_tokens),
    FIELD(NUMBER32, layers),
    FIELD(NUMBER32, kv_heads),
    FIELD(NUMBER32, head_size),
    FIELD(NUMBER32, tp_size),
    FIELD(NUMBER32, objects_per_layer),
    FIELD(NUMBER64, object_bytes),
};
#define FIELDS (sizeof(fields) / sizeof(fields[0]))

/* UTF-8 without control characters, overlong forms, surrogates: what may be printed is what was meant. */
static int text_sound(const uint8_t *s, size_t n)
{
	for (size_t i = 0; i < n;) {
		size_t more = s[i] < 0x80 ? 0 : s[i] >> 5 == 6 ? 1 : s[i] >> 4 == 14 ? 2 : s[i] >> 3 == 30 ? 3 : 4;
		uint32_t c = more == 0 ? s[i] : s[i] & (0x3fu >> more);
		static const uint32_t least[] = {0x20, 0x80, 0x800, 0x10000};

		if (more > 3 || i + more >= n)
			return 0;
		for (size_t k = 1; k <= more; k++) {
			if (s[i + k] >> 6 != 2)
				return 0;
			c = c << 6 | (s[i + k] & 0x3fu);
		}
		if (c < least[more] || c == 0x7f || c > 0x10ffff || (c >= 0xd800 && c < 0xe000))
			return 0;
		i += more + 1;
	}
	return n > 0;
}

static int any_set(const uint8_t *p, size_t n)
{
	uint8_t all = 0;

	for (size_t i = 0; i < n; i++)
		all |= p[i];
	return all != 0;
}

static void put32(uint8_t *p, uint32_t v)
{
	for (int i = 0; i < 4; i++)
		p[i] = (uint8_t)(v >> (8 * i));
}

static uint32_t get32(const uint8_t *p)
{
	return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static int append(uint8_t *record, size_t room, size_t *at, const void *data, size_t n)
{
	if (*at + 4 + n > room)
		return err_set(-ENOBUFS, "namespace record: the buffer of %zu bytes is too small", room);
	put32(record + *at, (uint32_t)n);
	memcpy(record + *at + 4, data, n);
	*at += 4 + n;
	return 0;
}

/* Adds one field of the spec. */
static int add_field(const struct tutti_ns_spec *spec, const struct field *f, uint8_t *record, size_t room, size_t *at)
{
	const uint8_t *from = (const uint8_t *)spec + f->in_spec;
	const char *text;
	uint8_t number[8];
	uint64_t v = 0;

	switch (f->kind) {
	case TEXT:
		memcpy(&text, from, sizeof(text));
		if (!text || !text[0])
			return err_set(-EINVAL, "namespace: %s is not set; an unknown fact cannot be a default",
			               f->name);
		if (strnlen(text, TEXT_BYTES_MAX + 1) > TEXT_BYTES_MAX)
			return err_set(-EINVAL, "namespace: %s is longer than %u bytes", f->name, TEXT_BYTES_MAX);
		if (!text_sound((const uint8_t *)text, strlen(text)))
			return err_set(-EINVAL, "namespace: %s is not UTF-8 text without control characters", f->name);
		return append(record, room, at, text, strlen(text));
	case DIGEST:
		if (!any_set(from, TUTTI_KEY_BYTES))
			return err_set(-EINVAL,
			               "namespace: %s is not set (all zeros); it must be a digest of the content",
			               f->name);
		return append(record, room, at, from, TUTTI_KEY_BYTES);
	default:
		memcpy(&v, from, f->kind == NUMBER32 ? 4 : 8);
		if (!v)
			return err_set(-EINVAL, "namespace: %s is 0; it must be set", f->name);
		put32(number, (uint32_t)v);
		put32(number + 4, (uint32_t)(v >> 32));
		return append(record, room, at, number, f->kind == NUMBER32 ? 4 : 8);
	}
}

int store_ns_record(const struct tutti_ns_spec *spec, uint8_t *record, size_t *bytes, struct tutti_key *digest)
{
	size_t at = RECORD_MAGIC_BYTES + 4;
	struct hash *h;

	if (*bytes < at)
		return err_set(-ENOBUFS, "namespace record: the buffer of %zu bytes is too small", *bytes);
	memcpy(record, RECORD_MAGIC, RECORD_MAGIC_BYTES);
	put32(record + RECORD_MAGIC_BYTES, RECORD_VERSION);
	for (size_t i = 0; i < FIELDS; i++) {
		int r = add_field(spec, &fields[i], record, *bytes, &at);

		if (r)
			return r;
	}
	if (spec->tp_size > TUTTI_RANKS_MAX)
		return err_set(-EINVAL, "namespace: tp_size is %u, at most %u are possible", spec->tp_size,
		               TUTTI_RANKS_MAX);
	*bytes = at;
	h = hash_new();
	if (!h)
		return err_set(-ENOMEM, "no memory for a digest");
	hash_begin(h);
	hash_add(h, record, at);
	hash_end(h, digest->b);
	hash_free(h);
	return 0;
}

/* Takes one field out of the record into facts. Returns its bytes with the length, or 0. */
static size_t take_field(const struct field *f, const uint8_t *p, size_t left, struct store_ns_facts *facts)
{
	uint8_t *to = (uint8_t *)facts + f->in_facts;
	static const uint32_t lengths[] = {[DIGEST] = TUTTI_KEY_BYTES, [NUMBER32] = 4, [NUMBER64] = 8};
	uint32_t n;

	if (left < 4)
		return 0;
	n = get32(p);
	if (n > left - 4 || !n || !any_set(p + 4, n))
		return 0;
	if (f->kind == TEXT ? n > TEXT_BYTES_MAX || !text_sound(p + 4, n) : n != lengths[f->kind])
		return 0;
	memcpy(to, p + 4, n); /* numbers too: little endian, see the assert */
	if (f->kind == TEXT)
		to[n] = 0;
	return n + 4;
}

int store_ns_parse(const uint8_t *record, size_t bytes, struct store_ns_facts *out)
{
	size_t at = RECORD_MAGIC_BYTES + 4;

	memset(out, 0, sizeof(*out));
	if (bytes < at || memcmp(record, RECORD_MAGIC, RECORD_MAGIC_BYTES) ||
	    get32(record + RECORD_MAGIC_BYTES) != RECORD_VERSION)
		return err_set(-EBADMSG, "not a namespace record of version %u", RECORD_VERSION);
	for (size_t i = 0; i < FIELDS; i++) {
		size_t n = take_field(&fields[i], record + at, bytes - at, out);

		if (!n)
			return err_set(-EBADMSG, "namespace record: %s is damaged", fields[i].name);
		at += n;
	}
	if (at != bytes)
		return err_set(-EBADMSG, "namespace record: %zu bytes follow its end", bytes - at);
	if (out->tp_size > TUTTI_RANKS_MAX)
		return err_set(-EBADMSG, "namespace record: tp_size is %u, at most %u are possible", out->tp_size,
		               TUTTI_RANKS_MAX);
	return 0;
}
