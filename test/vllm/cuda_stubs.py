#!/usr/bin/env python3
"""Makes empty libraries in place of CUDA's, so that PyPI's torch can be imported where there is no GPU.

    cuda_stubs.py TORCH_LIB_FOLDER OUT_FOLDER

PyPI has no torch without CUDA; its CUDA libraries are 2.5 GB that a CPU never calls. Every function that torch wants
from them is there and returns an error.
"""
import pathlib
import re
import subprocess
import sys

PREFIXES = {"cudart": r"_*cuda[A-Z]", "cublas": r"cublas(?!Lt)", "cublasLt": "cublasLt", "cusparse": r"cusparse(?!Lt)",
            "cusparseLt": "cusparseLt", "cudnn": "cudnn", "cufft": "cufft", "cufile": "cuFile", "nccl": "p?nccl",
            "curand": "curand", "nvrtc": "nvrtc", "cupti": "cupti", "nvshmem_host": "nvshmem"}


def read(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def main():
    lib, out = map(pathlib.Path, sys.argv[1:3])
    out.mkdir(parents=True, exist_ok=True)
    needed, wanted = set(), {}  # sonames; symbol -> version or ""
    for f in lib.glob("*.so"):
        needed |= set(re.findall(r"NEEDED.*\[(lib(?:cu|nccl|nvrtc|nvshmem|nvJit)[^\]]*)\]", read("readelf", "-d", f)))
        for line in read("nm", "-D", "--undefined-only", f).splitlines():
            symbol, _, version = line.split()[-1].partition("@")
            wanted[symbol] = version.lstrip("@") or wanted.get(symbol, "")
    for soname in sorted(needed):
        name = soname[3:].split(".so")[0]
        symbols = sorted(s for s in wanted if re.match(PREFIXES.get(name, "$"), s))
        versions = sorted({wanted[s] for s in symbols} - {""})
        # 100 is cudaErrorNoDevice; elsewhere any number but 0 is an error.
        code = "".join(f"int {s}(void) {{ return {100 if name == 'cudart' else 1}; }}\n" for s in symbols)
        (out / "stub.c").write_text(code)
        command = ["gcc", "-w", "-shared", "-fPIC", f"-Wl,-soname,{soname}", "-o", str(out / soname), str(out / "stub.c")]
        if versions:
            (out / "stub.map").write_text(f"{versions[0]} {{ global: *; }};\n")
            command.append(f"-Wl,--version-script={out / 'stub.map'}")
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
