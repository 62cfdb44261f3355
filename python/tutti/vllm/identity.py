"""What the bytes of a block depend on, besides tokens: digests of weights and adapters, by content and never by name.

Reading all of a model's files takes a moment, so what was read is kept: a digest belongs to a file's device, inode,
size and time of change.
"""
from __future__ import annotations

import concurrent.futures
import hashlib
import json
import os
from pathlib import Path
from typing import Any

WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".npz", ".npy")
CACHE = Path.home() / ".cache" / "tutti"


def _read_digest(path: Path) -> str:
    h = hashlib.sha256()
    with path.open("rb", buffering=0) as f:
        while chunk := f.read(8 << 20):
            h.update(chunk)
    return h.hexdigest()


def _digests(files: list[Path], cache: Path) -> list[str]:
    known: dict[str, str] = {}
    kept = cache / "digests.json"
    try:
        known = dict(json.loads(kept.read_text()))
    except (OSError, ValueError, TypeError):
        pass
    names = []
    for f in files:
        s = f.stat()
        names.append(f"{s.st_dev}:{s.st_ino}:{s.st_size}:{s.st_mtime_ns}:{s.st_ctime_ns}")
    missing = [i for i, name in enumerate(names) if name not in known]
    if missing:
        with concurrent.futures.ThreadPoolExecutor(min(4, len(missing))) as pool:
            for i, digest in zip(missing, pool.map(_read_digest, [files[i] for i in missing])):
                known[names[i]] = digest
        try:
            cache.mkdir(parents=True, exist_ok=True)
            temporary = kept.with_suffix(f".{os.getpid()}")
            temporary.write_text(json.dumps(dict(list(known.items())[-4096:])))
            temporary.replace(kept)
        except OSError:
            pass  # it will be read again the next time
    return [known[name] for name in names]


def files_digest(folder: str | os.PathLike[str], cache: Path = CACHE) -> bytes:
    """32 bytes over the names and contents of all weight files of a folder (or of one file), and of *.json beside them
    that say how to read them. ValueError: there is none."""
    top = Path(folder)
    if top.is_file():
        files = [top]
    else:
        names = sorted(top.iterdir()) if top.is_dir() else []
        files = [f for f in names if f.suffix in WEIGHTS or f.name in ("adapter_config.json", "quantize_config.json")]
    if not any(f.suffix in WEIGHTS for f in files):
        raise ValueError(f"tutti: no weight files in {folder}: what is stored could not be told from another model's. "
                         'Set "weights" in kv_connector_extra_config to a digest of them (64 hex digits)')
    return hashlib.sha256("\n".join(f"{f.name} {d}" for f, d in zip(files, _digests(files, cache))).encode()).digest()


def _local_folder(model: str, revision: str | None) -> str:
    if os.path.exists(model):
        return model
    from huggingface_hub import snapshot_download

    return str(snapshot_download(model, revision=revision, local_files_only=True))


def weights_digest(model: str, revision: str | None, config: dict[str, Any], dtype: str, load_format: str,
                   given: str | None) -> bytes:
    """32 bytes over a model's weights and everything in its configuration that changes what they compute.

    given: the user's own digest of the weights, 64 hex digits, or None. load_format "dummy" has no files; its numbers
    follow from the configuration.
    """
    if given is not None:
        if len(given) != 64:
            raise ValueError(f'tutti: option "weights" has {len(given)} characters; 64 hex digits are needed')
        content = bytes.fromhex(given)
    elif load_format == "dummy":
        content = b"dummy"
    else:
        content = files_digest(_local_folder(model, revision))
    unsaid = ("transformers_version", "_name_or_path", "torch_dtype", "dtype")
    facts = {k: v for k, v in config.items() if k not in unsaid}
    text = json.dumps(facts, sort_keys=True, default=str)
    return hashlib.sha256(b"\0".join([content, text.encode(), dtype.encode()])).digest()
