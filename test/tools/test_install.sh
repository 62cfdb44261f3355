#!/bin/bash
# What `make install` leaves is all that a user needs: staged under DESTDIR, found by pkg-config, compiled against,
# linked both ways, run; and the shared library shows the public functions and nothing else.
set -u
cd "$(dirname "$0")/../.."
build=${BUILD:-build}
passed=0 failed=0 skipped=0
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
prefix=/opt/tutti
at=$stage$prefix
export PKG_CONFIG_PATH=$at/lib/pkgconfig PKG_CONFIG_SYSROOT_DIR=$stage
version=$(sed -n 's/^.define TUTTI_VERSION_[A-Z]* //p' include/tutti/tutti.h | paste -sd .)

# check NAME COMMAND...
check()
{
	local name=$1
	shift
	if "$@" > "$stage/log" 2>&1; then
		echo "ok $name"
		passed=$((passed + 1))
	else
		sed 's/^/# /' "$stage/log"
		echo "not ok $name"
		failed=$((failed + 1))
	fi
}

files_are_there()
{
	local f
	for f in bin/tutti include/tutti/tutti.h include/tutti/types.h \
		lib/libtutti.a lib/libtutti.so lib/libtutti.so.0 "lib/libtutti.so.$version" \
		lib/pkgconfig/tutti.pc share/man/man1/tutti.1 share/man/man1/tutti-format.1 \
		share/bash-completion/completions/tutti; do
		[ -s "$at/$f" ] || { echo "$f is missing or empty"; return 1; }
	done
	# Nothing outside PREFIX, and no file that knows of the staging place.
	[ "$(find "$stage" -type f ! -path "$at/*" ! -path "$stage/log" | wc -l)" -eq 0 ] && ! grep -rlI "$stage" "$at"
}

pkg_config_tells_all()
{
	[ "$(pkg-config --modversion tutti)" = "$version" ] && pkg-config --validate tutti &&
		pkg-config --cflags tutti | grep -q -- "-I$at/include" && pkg-config --libs tutti | grep -q -- -ltutti
}

# The functions that include/ declares, one a line; those that it defines, inline, are no symbols of the library.
declared()
{
	cat include/tutti/*.h | "${CC:-gcc}" -E -P -Iinclude - | tr '\n' ' ' | tr ';' '\n' |
		grep -v -e typedef -e 'static inline' | grep -oE '\b(tutti|gio)_[a-z0-9_]+ ?\(' | tr -d ' (' | sort -u
}

exports_are_the_public_functions()
{
	nm -D --defined-only "$at/lib/libtutti.so" | awk '$2 != "A" { print $3 }' | sort > "$stage/exported"
	# Nothing without the version, nothing beside the public prefixes.
	! grep -v '^\(tutti\|gio\)_[a-z0-9_]*@@TUTTI_0\.1$' "$stage/exported" || return 1
	sed 's/@@.*//' "$stage/exported" > "$stage/names"
	declared > "$stage/declared"
	echo "<: include/ declares it and the library lacks it; >: the other way round"
	diff "$stage/declared" "$stage/names"
}

static_shows_the_public_functions_only()
{
	! nm --defined-only -g "$at/lib/libtutti.a" | awk 'NF == 3 { print $3 }' | grep -vE '^(tutti|gio)_[a-z0-9_]*$'
}

soname_is_versioned() { readelf -d "$at/lib/libtutti.so" | grep -q 'SONAME.*\[libtutti\.so\.0\]'; }

example_shared()
{
	"${CC:-gcc}" -std=c11 $(pkg-config --cflags tutti) examples/store_retrieve.c $(pkg-config --libs tutti) \
		-o "$stage/shared" && readelf -d "$stage/shared" | grep -q 'NEEDED.*libtutti\.so\.0' &&
		LD_LIBRARY_PATH=$at/lib "$stage/shared" "$stage/pool.shared"
}

example_static()
{
	# Only our own library is taken as an archive; the rest of --static is ordinary shared libraries.
	"${CC:-gcc}" -std=c11 $(pkg-config --cflags tutti) examples/store_retrieve.c \
		$(pkg-config --static --libs tutti | sed 's/-ltutti/-l:libtutti.a/') -o "$stage/static" &&
		! readelf -d "$stage/static" | grep -q libtutti && "$stage/static" "$stage/pool.static"
}

gio_example()
{
	"${CC:-gcc}" -std=c11 $(pkg-config --cflags tutti) examples/gio_copy.c $(pkg-config --libs tutti) \
		-o "$stage/gio" &&
		LD_LIBRARY_PATH=$at/lib "$stage/gio" "$stage/gio.dat" | grep -q ': 0 wrong$'
}

example_cxx_reads_it()
{
	g++ -std=c++20 $(pkg-config --cflags tutti) examples/store_retrieve.cc $(pkg-config --libs tutti) \
		-o "$stage/cxx" &&
		[ "$(LD_LIBRARY_PATH=$at/lib "$stage/cxx" "$stage/pool.shared")" = "2 of 2 blocks are in the pool" ]
}

command_runs() { "$at/bin/tutti" version | grep -qF "$version"; }

# The command finds its traces where they were installed, with no tree around it.
replays_an_installed_trace() { (cd / && "$at/bin/tutti" replay --trace longdocs --metadata-only --limit 2); }

completion_is_bash()
{
	local f=$at/share/bash-completion/completions/tutti
	bash -n "$f" && grep -q replay "$f"
}

man_pages_render()
{
	local page
	for page in "$at"/share/man/man1/*.1; do
		man --warnings -E UTF-8 -l "$page" 2> "$stage/warnings" > "$stage/text"
		[ -s "$stage/text" ] && [ ! -s "$stage/warnings" ] && continue
		echo "$page:"
		cat "$stage/warnings"
		return 1
	done
}

check installs make --no-print-directory -s BUILD="$build" PREFIX=$prefix DESTDIR="$stage" install
check files_are_there files_are_there
check pkg_config_tells_all pkg_config_tells_all
check exports_are_the_public_functions exports_are_the_public_functions
check static_shows_the_public_functions_only static_shows_the_public_functions_only
check soname_is_versioned soname_is_versioned
check example_shared example_shared
check example_static example_static
check gio_example gio_example
check example_cxx_reads_it example_cxx_reads_it
check command_runs command_runs
check replays_an_installed_trace replays_an_installed_trace
check completion_is_bash completion_is_bash
if command -v man >/dev/null; then
	check man_pages_render man_pages_render
else
	echo "skip man_pages_render # no man on this machine"
	skipped=$((skipped + 1))
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
