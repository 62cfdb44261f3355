"""What every call into the library shares: results to exceptions, deadlines, buffers, and handles.

A handle is a C object and the marks of those that are inside of it, so that Python code can free nothing that is in
use: close() raises BusyError instead. Handles made before a fork raise ForkedError in the child.

Between any two steps of Python code an exception may come out of nowhere: a signal's handler raises it, as Ctrl-C does.
So nothing is taken before that is there which gives it back. A handle owns the cell that C puts the pointer into, and
the call that frees the object empties the cell; a mark is put on inside of the try whose end takes it off, in one call.
"""
from __future__ import annotations

import array
import errno
import math
import operator
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


def whole(what: str, value: Any, low: int = 0, high: int = (1 << 32) - 1) -> int:
    """`value` as an int within [low, high]. InvalidError: it is none, or outside; numbers of numpy are fine, bool is
    not."""
    try:
        n = operator.index(value)
    except TypeError:
        n = None
    if n is None or isinstance(value, bool):
        raise InvalidError(errno.EINVAL, f"{what}: a whole number is needed, not {type(value).__name__} {value!r}")
    if not low <= n <= high:
        told = n if n.bit_length() <= 128 else f"a number of {n.bit_length()} bits"
        raise InvalidError(errno.EINVAL, f"{what} is {told}; it must be from {low} to {high}")
    return n


def _seconds(what: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) and not hasattr(value, "__float__"):
        raise InvalidError(errno.EINVAL, f"{what}: seconds are needed, not {type(value).__name__} {value!r}")
    try:
        seconds = float(value)
    except OverflowError:
        seconds = math.inf if value > 0 else -math.inf
    if math.isnan(seconds):
        raise InvalidError(errno.EINVAL, f"{what} is nan; seconds are needed")
    return seconds


def deadline_ns(timeout_s: float | None) -> int:
    """Absolute CLOCK_MONOTONIC nanoseconds; None: no deadline of the caller's. What is below 0 has passed already."""
    if timeout_s is None:
        return NEVER_NS
    seconds = _seconds("timeout_s", timeout_s)
    return time.monotonic_ns() + max(0, int(seconds * 1e9)) if seconds < 1e9 else NEVER_NS


def wait_slices(deadline: int, call: Callable[[int], int]) -> int:
    """Calls ``call(until_ns)`` until it gives something else than -ETIMEDOUT, or the deadline has passed."""
    while True:
        until = min(deadline, time.monotonic_ns() + _SLICE_NS)
        result = call(until)
        # Before `until` it is not this wait that timed out, but the I/O that was waited for.
        if result != -errno.ETIMEDOUT or until == deadline or time.monotonic_ns() < until:
            return result


def duration_ns(what: str, seconds: float | None) -> int:
    """A length of time; None or math.inf: as long as there is. InvalidError: below 0, or no number."""
    if seconds is None:
        return NEVER_NS
    length = _seconds(what, seconds)
    if length < 0:
        raise InvalidError(errno.EINVAL, f"{what} is {length} s; it can't be negative")
    return int(length * 1e9) if length < 1e9 else NEVER_NS


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
    """One path or several, as text. InvalidError: none, a name with a NUL, which C would take for its end, or two names
    of one file."""
    one = isinstance(paths, (str, bytes)) or hasattr(paths, "__fspath__")
    given: Any = [paths] if one else paths
    names = [os.fsdecode(p) for p in given]
    if not names:
        raise InvalidError(errno.EINVAL, "a path is needed, or several")
    for name in names:
        if "\0" in name:
            raise InvalidError(errno.EINVAL, f"a path has a NUL character in it: {name!r}")
    seen: dict[str, str] = {}
    for name in names if len(names) > 1 else []:
        first = seen.setdefault(os.path.realpath(name), name)
        if first is not name:
            raise InvalidError(errno.EINVAL, f"{first} and {name} are one and the same; name each device once")
    return names


def paths_of(paths: Paths) -> tuple[Any, int, Any]:
    """(char **, n, what keeps it alive)."""
    names = [ffi.new("char[]", os.fsencode(p)) for p in path_list(paths)]
    array_ = ffi.new("char *[]", names)
    return array_, len(names), (array_, names)


Progress = Callable[[str, int, int], None]


@ffi.def_extern()  # type: ignore[untyped-decorator]
def py_progress(arg: Any, what: Any, done: int, total: int) -> None:
    told = ffi.from_handle(arg)
    try:
        if told.error is None:
            told.fn(ffi.string(what).decode(errors="replace"), done, total)
    except BaseException as e:  # it can't pass through C
        told.error = e


class Told:
    """A caller's progress function during one call of the library: c and arg are what C is given."""

    def __init__(self, fn: Progress | None) -> None:
        self.fn = fn
        self.error: BaseException | None = None
        self.arg = ffi.new_handle(self) if fn else ffi.NULL
        self.c = lib.py_progress if fn else ffi.NULL

    def check(self, result: int) -> None:
        """check(), but what the function raised comes first; the call went on to its end all the same."""
        if self.error is not None:
            raise self.error
        check(result)


class Handle:
    """A C object in a cell, who is inside of it, and how it ends. c_type: of the pointer; free(cell) ends the object
    and empties the cell, both in C, unless it says that the object lives on."""

    def __init__(self, c_type: str, name: str, free: Callable[[Any], int]) -> None:
        #: What C writes the pointer to when it makes the object; NULL before that, and after its end.
        self.cell = ffi.new(c_type + " *")
        #: A mark for each who uses the pointer: enter() puts it on; taken off by inside.discard(mark), in a finally.
        self.inside: set[object] = set()
        self._name, self._free = name, free
        self._ending, self._lock, self._forks = False, threading.Lock(), _forks

    def enter(self, mark: object) -> Any:
        """The C pointer, good as long as the mark is on."""
        self.inside.add(mark)
        self._parent_s()
        if self._ending:
            with self._lock:  # who ends it has seen the mark and gives up, or has not and gets done
                pass
        pointer = self.cell[0]
        if not pointer:
            raise InvalidError(errno.EINVAL, f"{self._name} is closed")
        return pointer

    def call(self, function: Callable[..., int], *args: Any) -> None:
        """function(pointer, *args), checked."""
        mark = object()
        try:
            result = function(self.enter(mark), *args)
            if result:
                check(result)
        finally:
            self.inside.discard(mark)

    def _parent_s(self) -> None:
        if self._forks != _forks:
            raise ForkedError(errno.EINVAL, f"{self._name} was opened before a fork, and this is the child: its "
                                            "threads stayed with the parent; open it in the process that uses it")

    def alone(self, function: Callable[[Any], int]) -> int:
        """function(cell), while nobody else is inside and nobody gets in. -> its result. BusyError: somebody is."""
        self._parent_s()
        with self._lock:
            try:
                self._ending = True
                if self.inside:
                    raise BusyError(errno.EBUSY, f"{self._name} is in use: a thread is inside, or plans are unfinished")
                return function(self.cell)
            finally:
                self._ending = False

    @property
    def open(self) -> bool:
        return bool(self.cell[0]) and self._forks == _forks

    def close(self) -> None:
        """Idempotent."""
        if self.open:
            check(self.alone(lambda cell: self._free(cell) if cell[0] else 0))


class _Closable(Protocol):
    def close(self) -> None: ...


def finish_with(owner: object, *handles: _Closable) -> Any:
    """Closes the handles when their owner is collected or the interpreter exits, in reverse order of making."""
    return weakref.finalize(owner, _close_quietly, *handles)


def _close_quietly(*handles: _Closable) -> None:
    for handle in handles:
        try:
            handle.close()
        except OSError:
            pass  # nobody is there to be told; the pool recovers what was not closed
