"""LMCache 0.5.3 beside us, on the same requests, in the process of gpu_ttft.py (WHAT lmcache-dram, -layerwise, -disk).

Its layer-wise kernel knows no cache with K and V of a token side by side, which is what vLLM 0.26 has on a GPU; its
path for MLA moves such rows. So `patch_layerwise` shows it the cache as one row a token. What it loads is not compared
with what was stored: its rows are times.
"""
import glob
import json
import os
import sys
import types

CHUNK = 256  # tokens: a hit ends at a multiple of it


def library_folder(names=("cufile", "cudart")):
    """LMCache loads these by their names without a number; torch's wheels and CUDA's folders have them only with one."""
    folder = "/tmp/tutti-lmcache-libraries"
    os.makedirs(folder, exist_ok=True)
    places = [f"{p}/nvidia/{n}/lib" for p in sys.path for n in ("cu13", "cufile", "cuda_runtime")]
    for name in names:
        found = sorted(f for p in (*places, "/usr/local/cuda/lib64", "/usr/lib/x86_64-linux-gnu")
                       for f in glob.glob(f"{p}/lib{name}.so.[0-9]*"))
        if found and not os.path.lexists(f"{folder}/lib{name}.so"):
            os.symlink(found[0], f"{folder}/lib{name}.so")
    return folder


def prepare(mode, folder, dram_gib):
    """Before vLLM is imported. Starts the process again, because the linker and Python's hash read theirs at the start."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        env = dict(os.environ, PYTHONHASHSEED="0", LMCACHE_TRACK_USAGE="false", LMCACHE_LOG_LEVEL="ERROR")
        env["LD_LIBRARY_PATH"] = library_folder() + ":" + env.get("LD_LIBRARY_PATH", "")
        os.execve(sys.executable, [sys.executable, *sys.argv], env)
    try:
        import numba  # noqa: F401
    except ImportError:  # only its server and its CPU path compile with it
        import importlib.machinery

        numba = types.ModuleType("numba")
        numba.njit = numba.jit = lambda *a, **k: a[0] if a and callable(a[0]) else lambda f: f
        numba.prange, numba.__version__ = range, "0"
        numba.__spec__ = importlib.machinery.ModuleSpec("numba", None)
        sys.modules["numba"] = numba
    disk = mode == "disk"
    config = {"chunk_size": CHUNK, "local_cpu": not disk, "max_local_cpu_size": dram_gib, "save_unfull_chunk": False,
              "save_decode_cache": False, "use_layerwise": mode == "layerwise", "extra_config": {"disk_io_threads": 4}}
    if disk:
        os.makedirs(folder / "lmcache", exist_ok=True)
        config.update(local_disk=f"{folder}/lmcache/", max_local_disk_size=40.0)
        config["extra_config"]["use_odirect"] = True
    if mode == "layerwise":
        config["extra_config"]["save_only_first_rank"] = False
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "lmcache.yaml").write_text(json.dumps(config))  # JSON is YAML
    os.environ["LMCACHE_CONFIG_FILE"] = str(folder / "lmcache.yaml")
    if mode == "layerwise":
        patch_layerwise()


def patch_layerwise():
    from lmcache.integration.vllm.vllm_service_factory import VllmServiceFactory
    from lmcache.integration.vllm.vllm_v1_adapter import LMCacheConnectorV1Impl

    metadata_of, register = VllmServiceFactory.get_or_create_metadata, LMCacheConnectorV1Impl.register_kv_caches

    def rows_metadata(self, *args, **kwargs):
        m = metadata_of(self, *args, **kwargs)
        if m is not None and not m.use_mla:
            layers, _, chunk, heads, size = m.kv_shape
            m.use_mla, m.kv_shape = True, (layers, 1, chunk, heads, 2 * size)
        return m

    def register_rows(self, caches):
        rows = {}
        for name, cache in caches.items():  # blocks, heads, tokens, K and V; in memory tokens before heads
            tokens_first = cache.permute(0, 2, 1, 3)
            if not tokens_first.is_contiguous():
                raise RuntimeError(f"{name}: {tuple(cache.shape)} with strides {cache.stride()} is no row a token")
            rows[name] = tokens_first.flatten(2)
        return register(self, rows)

    VllmServiceFactory.get_or_create_metadata = rows_metadata
    LMCacheConnectorV1Impl.register_kv_caches = register_rows


def pending():
    """Stores that have not ended."""
    from lmcache.integration.vllm.utils import ENGINE_NAME
    from lmcache.v1.cache_engine import LMCacheEngineBuilder

    n = 0
    for backend in LMCacheEngineBuilder.get(ENGINE_NAME).storage_manager.storage_backends.values():
        worker = getattr(backend, "disk_worker", None)
        n += len(worker.put_tasks) if worker else len(getattr(backend, "put_tasks", ()))
    return n
