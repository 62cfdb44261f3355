#!/bin/bash
# Time to the first token and inter-token latency in a real vLLM on one GPU: Tutti, vLLM's own caches, LMCache, nothing.
#
#     gpu_all.sh PACK OUT [ENGINE...]       PACK: gpu_pack.sh's folder; this program is in PACK/test
#
# One engine at a time, a minute or two each, all by default; rows of each in OUT/NAME.json, what they said in
# OUT/logs.txt. Then: gpu_table.py OUT/*.json. Needs 80 GB of memory for the model's pool, and root to mount it.
set -u
pack=$(cd "$1" && pwd) out=$(mkdir -p "$2" && cd "$2" && pwd)
shift 2
site=/tmp/site ram=/tmp/tutti-ram lengths=16384,32768,65536,131072
[ $# -gt 0 ] ||
	set -- itl-tutti itl-plain layerwise async plain dram lmcache-dram lmcache-layerwise lmcache-disk graphs disk

nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
[ -d $site/vllm ] || "$pack/unpack.sh" $site || exit 1
mkdir -p $ram
memory() { mount -t tmpfs -o size=80g"$1" tmpfs $ram; }
mountpoint -q $ram || memory ,huge=always || memory '' || exit 1
export PYTHONPATH=$site PYTHONUNBUFFERED=1

# Four D7-PS1010 by their data sheet: bench/gpu/drives.csv.
rates='"read_bytes_per_s":14500000000,"write_bytes_per_s":10500000000'
waits='"read_latency_ns":60000,"write_latency_ns":10000,"queue_depth":1024,"mixed_percent":100'
drives="\"controller\":\"model\",\"model_timing\":{$rates,$waits}"
pool() # NAME [SIZE]
{
	echo "\"pool\":[\"$ram/$1-a\",\"$ram/$1-b\",\"$ram/$1-c\",\"$ram/$1-d\"],\"size\":\"${2:-20G}\""
}

# In the background; its turn is taken from the one before. RUNNER: of vLLM, or - for its own choice.
engine() # NAME RUNNER PROGRAM WHAT OPTION...
{
	local name=$1 runner=$2 program=$3 what=$4
	shift 4
	mkdir -p "/tmp/home-$name"
	(
		[ "$runner" = - ] || export VLLM_USE_V2_MODEL_RUNNER=$runner
		HOME=/tmp/home-$name exec timeout -k 5 300 python3 "$pack/test/$program.py" "$what" "$out/$name.json" \
			--folder "/tmp/m8b-$name" --name "$name" --turn /tmp/turn --memory 0.4 "$@"
	) > "/tmp/log-$name" 2>&1 &
}

begin()
{
	case $1 in
	itl-tutti) engine "$1" - gpu_itl tutti --graphs --connector "{$(pool "$1" 60G),$drives}" ;;
	itl-plain) engine "$1" - gpu_itl plain --graphs ;;
	layerwise) engine "$1" 0 gpu_ttft tutti --no-async-scheduling --lengths $lengths --hits 0.9375,0.75,0 --reps 2 \
		--connector "{$(pool "$1" 60G),$drives,\"mode\":\"layerwise\"}" ;;
	graphs) engine "$1" 0 gpu_ttft tutti --no-async-scheduling --graphs --hits 0.984,0.9375,0.75 --damage 300 \
		--connector "{$(pool "$1"),$drives,\"mode\":\"layerwise\"}" ;;
	async) engine "$1" - gpu_ttft tutti --hits 0.984,0.9375,0.75,0.5,0 --connector "{$(pool "$1"),$drives}" ;;
	disk) engine "$1" - gpu_ttft tutti --hits 0.9375,0.75 --reps 2 \
		--connector '{"pool":"/tmp/tutti-disk.pool","size":"20G"}' ;;
	plain) engine "$1" - gpu_ttft plain --lengths $lengths --hits 0.984,0.9375,0.75,0 --reps 2 ;;
	dram) engine "$1" - gpu_ttft dram --lengths $lengths --hits 0.9375,0.75,0 --reps 2 --dram 40 ;;
	lmcache-disk) engine "$1" - gpu_ttft "$1" --hits 0.9375,0.75 --reps 2 ;;
	lmcache-*) engine "$1" - gpu_ttft "$1" --hits 0.984,0.9375,0.75,0.5,0 --reps 2 --dram 34 ;;
	*) echo "no such engine: $1"; exit 2 ;;
	esac
}

# The next one imports, which takes seconds, while this one measures.
status=0 last='' last_pid=''
end()
{
	local rc=0
	wait "$last_pid" || rc=$?
	[ $rc -eq 0 ] || { status=1; echo "== $last failed ($rc)"; tail -n 25 "/tmp/log-$last"; }
	echo "== $last, $SECONDS s"
	grep -aE "^$last|^\{|FAULT|tutti: (rank|pool)|cudagraph_mode" "/tmp/log-$last" | cut -c 1-250 | head -n 70
	{ echo "=== $last"; cat "/tmp/log-$last"; } >> "$out/logs.txt"
	rm -f $ram/"$last"-*
}
for name; do
	begin "$name"
	pid=$!
	[ -z "$last" ] || end
	last=$name last_pid=$pid
done
end
exit $status
