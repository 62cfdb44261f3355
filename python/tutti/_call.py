"""What every call into the library shares: results to exceptions, deadlines, buffers, and handles.

A handle is a C object with a count of the threads that are inside of it, so that Python code can free nothing that is
in use: close() raises BusyError instead. Handles made before a fork raise ForkedError in the child.
"""
from __future__ import annotations

import array
import errno
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol, Union

from ._native import ffi, lib
from .errors import BusyError, ForkedError, InvalidError, error_of

KEY_BYTES = 32
NEVER_NS = (1 << 64) - 1
_SLICE_NS = 200_000_000  # of a long wait, so that a signal gets through to Python

#: Anything with the buffer protocol: bytes, bytearray, memoryview, numpy array.
Buffer = Any
Paths = Union[str, "os.PathLike[str]", Sequence[Union[str, "os.PathLike[str]"]]]

_forks = 0


def _forked() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_forked)


def check(result: int) -> None:
    """Raises what a result of the library stands for; 0 is fine."""
    if result:
        text = ffi.string(lib.tutti_error_message()).decode(errors="replace")
        if not text:
            text = ffi.string(lib.tutti_strerror(result)).decode()
        raise error_of(result, text)


def deadline_ns(timeout_s: float | None) -> int:
    """Absolute CLOCK_MONOTONIC nanoseconds; None: no deadline of the caller's."""
    return NEVER_NS if timeout_s is None else time.monotonic_ns() + max(0, int(timeout_s * 1e9))


def wait_slices(deadline: int, call: Callable[[int], int]) -> int:
    """Calls ``call(until_ns)`` until it gives something else than -ETIMEDOUT, or the deadline has passed."""
    while True:
        until = min(deadline, time.monotonic_ns() + _SLICE_NS)
        result = call(until)
        # Before `until` it is not this wait that timed out, but the I/O that was waited for.
        if result != -errno.ETIMEDOUT or until == deadline or time.monotonic_ns() < until:
            return result


def duration_ns(seconds: float | None) -> int:
    """A length of time; None: as long as there is."""
    return NEVER_NS if seconds is None else max(0, int(seconds * 1e9))


def array_of(c_type: str, buffer: Buffer) -> Any:
    """A C array over a buffer's own bytes (no copy), alive as long as the array. InvalidError: it is not one
    contiguous buffer of whole elements."""
    try:
        array_ = ffi.from_buffer(c_type + "[]", buffer)
        nbytes = memoryview(buffer).nbytes
    except (TypeError, ValueError, BufferError) as e:
        raise InvalidError(errno.EINVAL, f"a contiguous buffer of bytes is needed: {e}") from None
    if len(array_) * ffi.sizeof(c_type) != nbytes:
        raise InvalidError(errno.EINVAL, f"{nbytes} bytes are not a whole number of {ffi.sizeof(c_type)}-byte {c_type}")
    return array_


def keys_of(keys: Buffer) -> Any:
    """struct tutti_key[n] over n * 32 bytes."""
    return array_of("struct tutti_key", keys)


def key_of(key: Buffer | None) -> Any:
    """One key, or NULL for None."""
    if key is None:
        return ffi.NULL
    array_ = keys_of(key)
    if len(array_) != 1:
        raise InvalidError(errno.EINVAL, f"one key of {KEY_BYTES} bytes is needed, not {len(array_)}")
    return array_


def integers_of(values: Any, c_type: str, code: str) -> Any:
    """A C array of integers: without a copy where they have the C type's size already.

    values: array.array or numpy array of that size, bytes, torch tensor on the CPU, or any sequence of ints (copied).
    """
    size = ffi.sizeof(c_type)
    if hasattr(values, "data_ptr") and hasattr(values, "numpy"):
        values = values.numpy()
    if hasattr(values, "astype") and hasattr(values, "dtype"):
        if values.dtype.kind not in "iu":
            raise InvalidError(errno.EINVAL, f"integers are needed, not {values.dtype}")
        narrow = values.dtype.kind == "u" and values.dtype.itemsize <= size
        if not narrow and values.size and (int(values.min()) < 0 or int(values.max()) >= 1 << 8 * size):
            raise InvalidError(errno.EINVAL, f"a value does not fit {c_type}")
        if values.dtype.itemsize != size or not values.flags.c_contiguous or not values.dtype.isnative:
            values = values.astype(f"u{size}", order="C")
    elif isinstance(values, array.array):
        if values.itemsize != size or values.typecode not in "ILQ":
            values = _integers(values, c_type, code)
    elif isinstance(values, memoryview):
        if values.format not in ("B", "b", "c") and (values.itemsize != size or values.format not in "ILQ"):
            values = _integers(values.tolist(), c_type, code)
    elif not isinstance(values, (bytes, bytearray)):
        values = _integers(values, c_type, code)
    return array_of(c_type, values)


def _integers(values: Any, c_type: str, code: str) -> Any:
    try:
        return array.array(code, values)
    except (TypeError, OverflowError) as e:
        raise InvalidError(errno.EINVAL, f"{c_type} integers are needed: {e}") from None


def path_list(paths: Paths) -> list[str]:
    """One path or several, as text. InvalidError: none, or a name with a NUL, which C would take for its end."""
    one = isinstance(paths, (str, bytes)) or hasattr(paths, "__fspath__")
    given: Any = [paths] if one else paths
    names = [os.fsdecode(p) for p in given]
    if not names:
        raise InvalidError(errno.EINVAL, "a path is needed, or several")
    for name in names:
        if "\0" in name:
            raise InvalidError(errno.EINVAL, f"a path has a NUL character in it: {name!r}")
    return names


def paths_of(paths: Paths) -> tuple[Any, int, Any]:
    """(char **, n, what keeps it alive)."""
    names = [ffi.new("char[]", os.fsencode(p)) for p in path_list(paths)]
    array_ = ffi.new("char *[]", names)
    return array_, len(names), (array_, names)


Progress = Callable[[str, int, int], None]


@ffi.def_extern()  # type: ignore[untyped-decorator]
def py_progress(arg: Any, what: Any, done: int, total: int) -> None:
    ffi.from_handle(arg)(ffi.string(what).decode(errors="replace"), done, total)


def progress_of(fn: Progress | None) -> tuple[Any, Any]:
    """(tutti_progress_fn, its arg; keep it alive during the call)."""
    return (lib.py_progress, ffi.new_handle(fn)) if fn else (ffi.NULL, ffi.NULL)


class Handle:
    """A C object, who is inside of it, and how it ends."""

    def __init__(self, pointer: Any, name: str, free: Callable[[Any], int]) -> None:
        self._pointer, self._name, self._free = pointer, name, free
        self._users, self._lock, self._forks = 0, threading.Lock(), _forks

    def enter(self) -> Any:
        """The C pointer, good until leave()."""
        if self._forks != _forks:
            raise ForkedError(errno.EINVAL, f"{self._name} was opened before a fork, and this is the child: its "
                                            "threads stayed with the parent; open it in the process that uses it")
        with self._lock:
            if self._pointer is None:
                raise InvalidError(errno.EINVAL, f"{self._name} is closed")
            self._users += 1
            return self._pointer

    def leave(self) -> None:
        with self._lock:
            self._users -= 1

    def call(self, function: Callable[..., int], *args: Any) -> None:
        """function(pointer, *args), checked."""
        pointer = self.enter()
        try:
            result = function(pointer, *args)
            if result:
                check(result)
        finally:
            self.leave()

    def take(self) -> Any:
        """The pointer for one who will free it: nobody else is inside, and nobody gets in. None: closed, or forked."""
        if self._forks != _forks:
            return None
        with self._lock:
            if self._pointer is not None and self._users:
                raise BusyError(errno.EBUSY, f"{self._name} is in use: a thread is inside, or plans are unfinished")
            pointer, self._pointer = self._pointer, None
            return pointer

    def put_back(self, pointer: Any) -> None:
        """After take(), when the C object lives on."""
        with self._lock:
            self._pointer = pointer

    @property
    def open(self) -> bool:
        return self._pointer is not None and self._forks == _forks

    def close(self) -> None:
        """Idempotent."""
        pointer = self.take()
        if pointer is not None:
            check(self._free(pointer))


class _Closable(Protocol):
    def close(self) -> None: ...


def finish_with(owner: object, handle: _Closable) -> Any:
    """Closes the handle when its owner is collected or the interpreter exits, in reverse order of making."""
    return weakref.finalize(owner, _close_quietly, handle)


def _close_quietly(handle: _Closable) -> None:
    try:
        handle.close()
    except OSError:
        pass  # nobody is there to be told; the pool recovers what was not closed
