/*
 * store_retrieve.cc - the pool from C++: what store_retrieve.c left in it is found again by its tokens.
 * c++ -std=c++20 store_retrieve.cc $(pkg-config --cflags --libs tutti) && ./a.out FILE_OF_THE_C_EXAMPLE
 */
#include <algorithm>
#include <cstdio>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <tutti/tutti.h>
#include <vector>

static void must(int result)
{
	if (result != 0)
		throw std::runtime_error(tutti_error_message());
}

struct store_close {
	void operator()(tutti_store *s) const { tutti_store_close(s); }
};

/* How many leading blocks of these tokens the pool holds, without holding on to them. */
static size_t cached_blocks(tutti_ns *ns, const tutti_key &digest, const std::vector<uint32_t> &tokens,
                            uint32_t block_tokens)
{
	std::vector<tutti_key> keys(tokens.size() / block_tokens);
	size_t matched = 0;

	must(tutti_keys(&digest, nullptr, tokens.data(), block_tokens, nullptr, keys.size(), keys.data()));
	must(tutti_lookup(ns, keys.data(), keys.size(), 0, &matched, nullptr));
	return matched;
}

int main(int argc, char **argv)
try {
	const char *path = argc > 1 ? argv[1] : "example.tutti";
	tutti_store_opts opts = TUTTI_STORE_OPTS_INIT;
	tutti_ns_info info = {};
	tutti_store *opened = nullptr;
	tutti_ns *ns = nullptr;

	opts.paths = &path;
	opts.n_paths = 1;
	if (tutti_store_open(&opts, &opened) != 0)
		throw std::runtime_error(tutti_error_message() +
		                         std::string("\nRun the C example on that path first."));
	std::unique_ptr<tutti_store, store_close> store(opened);
	must(tutti_ns_at(store.get(), 0, &ns));
	must(tutti_ns_get_info(ns, &info));

	tutti_key digest = {};
	for (int i = 0; i < TUTTI_KEY_BYTES; i++)
		digest.b[i] = info.digest[i];
	std::vector<uint32_t> tokens(2 * info.block_tokens);
	const uint32_t start[] = {101, 2023, 2003, 1037, 6251};
	std::copy(std::begin(start), std::end(start), tokens.begin());
	std::printf("%zu of 2 blocks are in the pool\n", cached_blocks(ns, digest, tokens, info.block_tokens));
	return 0;
} catch (const std::exception &e) {
	std::fprintf(stderr, "%s\n", e.what());
	return 1;
}
