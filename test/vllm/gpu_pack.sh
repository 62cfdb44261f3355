#!/bin/bash
# Packs vLLM 0.26.0, the newest for torch 2.11 and CUDA 13, for a Hopper machine without a network that has Python 3.12,
# torch 2.11 and transformers 5.17: code for other GPUs zeroed; FlashAttention 2, MoE and the Rust front end left out;
# with the wheels that it can't be imported without, and the project's own (make wheel CUDA=1); and LMCache 0.5.3, the
# newest whose extension loads with that torch. About 53 MiB.
#   gpu_pack.sh FOLDER [WORK]     there: FOLDER/test/gpu_all.sh FOLDER OUT
set -euo pipefail
top=$(cd "$(dirname "$0")/../.." && pwd)
out=$(mkdir -p "$1" && cd "$1" && pwd)
work=${2:-$(mktemp -d)}
own=("$top"/build/python/dist-cuda/tutti-*-abi3-*.whl)
[ -e "${own[0]}" ] || { echo "no wheel of the project: run make wheel CUDA=1 first"; exit 1; }
mkdir -p "$work/dl" "$work/site" "$out/wheels"
get=(python3 -m pip download -q --no-deps --only-binary=:all: --python-version 3.12 --implementation cp)
for n in 39 35 34 31 28 27 26 24 17; do get+=(--platform "manylinux_2_${n}_x86_64"); done
get+=(--platform manylinux2014_x86_64 --platform manylinux1_x86_64)

ls "$work"/dl/vllm-0.26.0*.whl > /dev/null 2>&1 || "${get[@]}" -d "$work/dl" vllm==0.26.0
"${get[@]}" -d "$out/wheels" cffi apache_tvm_ffi==0.1.10 xgrammar==0.2.7 llguidance==1.7.6 openai_harmony==0.0.8 \
    openai==3.57.0 pydantic_core==2.50.5 pydantic==2.14.4 pydantic_extra_types==2.11.1 annotated_types==0.8.0 \
    typing_inspection==0.4.5 pyzmq==27.3.0 cbor2==6.3.0 msgspec==0.23.0 fastapi==0.136.3 starlette==1.10.0 \
    python_multipart==0.0.34 cachetools==8.0.2 pybase64==1.5.1 setproctitle==1.3.8 sniffio==1.3.1 truststore==0.10.5 \
    httpx2==2.16.2 httpcore2==2.16.2 partial_json_parser==0.2.1.1.post7 googleapis_common_protos==1.76.0 \
    opentelemetry_api==1.45.2 opentelemetry_sdk==1.45.2 opentelemetry_proto==1.45.2 \
    opentelemetry_exporter_otlp==1.45.2 opentelemetry_exporter_otlp_common==0.66b2 \
    opentelemetry_exporter_otlp_proto_common==1.45.2 opentelemetry_exporter_otlp_proto_grpc==1.45.2 \
    opentelemetry_exporter_otlp_proto_http==1.45.2 opentelemetry_exporter_http_transport==0.66b2 \
    opentelemetry_semantic_conventions==0.66b2 opentelemetry_semantic_conventions_ai==0.5.1 \
    uvicorn httptools prometheus_fastapi_instrumentator
cp "${own[@]}" "$out/wheels/"

rm -rf "$work/site" && mkdir "$work/site"
(cd "$work/site" && unzip -q "$work"/dl/vllm-0.26.0*.whl)
(
    cd "$work/site/vllm"
    rm -rf vllm_flash_attn/_vllm_fa2_C* _moe_C* vllm-rs _flashmla* _qutlass* third_party/deep_gemm \
        third_party/fmha_sm100
    for library in _C_stable_libtorch.abi3.so vllm_flash_attn/_vllm_fa3_C.abi3.so; do
        python3 "$top/test/vllm/gpu_fatbin.py" "$library"
    done
)
tar c -C "$work/site" . | xz -T0 -6 > "$out/vllm.tar.xz"

# LMCache: its import needs the three small ones; its Redis client, its own commands and symbols stay out.
mkdir -p "$work/dl-lmcache" "$work/lmcache"
ls "$work"/dl-lmcache/lmcache-0.5.3*.whl > /dev/null 2>&1 ||
    "${get[@]}" -d "$work/dl-lmcache" lmcache==0.5.3 aiofile==3.12.3 caio==0.12.10 cufile-python==0.2.0
for wheel in "$work"/dl-lmcache/*.whl; do unzip -qo "$wheel" -d "$work/lmcache"; done
(
    cd "$work/lmcache"
    rm -rf tests lmcache/lmcache_redis*.so lmcache/cli lmcache/lmcache_frontend
    python3 "$top/test/vllm/gpu_fatbin.py" lmcache/c_ops*.so
    strip -g lmcache/*.so
)
tar c -C "$work/lmcache" . | xz -T0 -6 > "$out/lmcache.tar.xz"

mkdir -p "$out/test" && cp "$top"/test/vllm/gpu_* "$out/test/"
cat > "$out/unpack.sh" << 'EOF'
#!/bin/bash
# unpack.sh SITE
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
for pack in vllm lmcache; do xz -dc "$here/$pack.tar.xz" | tar x -C "$1"; done
python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target "$1" "$here"/wheels/*.whl
EOF
chmod +x "$out/unpack.sh"
du -sh "$out"
