#!/bin/bash
# The same headers, other compilers: public headers as C++ and as C with clang, device code as C++ and as CUDA, so that
# none of them can drift. Only compiled, nothing is run.
set -u
cd "$(dirname "$0")/../.."
passed=0 failed=0 skipped=0
out=${BUILD:-build}/compile
mkdir -p "$out"

# check NAME COMMAND...: skipped when the compiler is not there.
check()
{
	local name=$1
	shift
	if ! command -v "$1" >/dev/null; then
		echo "skip $name # no $1 on this machine"
		skipped=$((skipped + 1))
	elif "$@" > "$out/$name.log" 2>&1; then
		echo "ok $name"
		passed=$((passed + 1))
	else
		cat "$out/$name.log"
		echo "not ok $name"
		failed=$((failed + 1))
	fi
}

strict="-Wall -Wextra -Wshadow -Wconversion -Wpedantic -Werror"
# g++ alone counts what TUTTI_..._INIT leaves at zero as missing.
cxx="-Wall -Wextra -Werror -Wno-missing-field-initializers"
rooms="-D_GNU_SOURCE -Iinclude -Isrc -Itest -I."
for header in include/tutti/*.h; do
	name=$(basename "$header" .h)
	unit=$out/$name
	# As a translation unit of its own: a header needs nothing before it. -Iinclude is all that a user gives.
	echo "#include <tutti/$name.h>" > "$unit.c"
	cp "$unit.c" "$unit.cc"
	check "public_${name}_c11" "${CC:-gcc}" -std=c11 $strict -Iinclude -c "$unit.c" -o "$unit.o"
	check "public_${name}_clang" clang -std=c11 $strict -Iinclude -c "$unit.c" -o "$unit.o"
	check "public_${name}_cxx" g++ -std=c++11 $cxx -Iinclude -c "$unit.cc" -o "$unit.o"
	check "public_${name}_clangxx" clang++ -std=c++20 $cxx -Iinclude -c "$unit.cc" -o "$unit.o"
done
check example_cxx g++ -std=c++20 $cxx -Iinclude -c examples/store_retrieve.cc -o "$out/example.o"
check example_clangxx clang++ -std=c++20 $cxx -Iinclude -c examples/store_retrieve.cc -o "$out/example.o"
check device_cxx g++ -std=c++17 -Wall -Wextra -Werror $rooms -c test/dev/compile_cxx.cc -o "$out/cxx.o"
check device_clangxx clang++ -std=c++17 -Wall -Wextra -Werror $rooms -c test/dev/compile_cxx.cc -o "$out/cxx.o"
check device_cuda nvcc -arch=sm_90 $rooms -c test/dev/compile_cuda.cu -o "$out/cuda.o"
check executor_cuda nvcc -std=c++17 -arch=sm_90 -DTUTTI_CUDA -Xcompiler -Wall,-Wextra,-Werror $rooms \
	-c src/exec/io_kernel.cu -o "$out/executor.o"
check executor_cuda_small nvcc -std=c++17 -arch=sm_90 -DTUTTI_CUDA -Xcompiler -Wall,-Wextra,-Werror $rooms \
	-c src/exec/io_small.cu -o "$out/executor_small.o"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
