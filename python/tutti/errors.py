"""What can go wrong: one class per errno of the library, all of them OSError.

``str(e)`` carries the library's message: what, where, why, what to do. ``e.errno`` is the errno, except in NvmeError,
where a drive answered and ``e.status`` is its status (SCT << 8 | SC).
"""
from __future__ import annotations

import errno as _e


class TuttiError(OSError):
    """Any failure of the library; a subclass where the errno has one."""


class NvmeError(TuttiError):
    """A drive answered with an error. ``status``: SCT << 8 | SC of the NVMe completion; errno is EIO."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(_e.EIO, message)
        self.status = status

    def __reduce__(self) -> tuple[type[NvmeError], tuple[int, str]]:
        return NvmeError, (self.status, str(self.strerror))


class InvalidError(TuttiError, ValueError):
    """EINVAL: an argument, or a call that does not fit the object's state."""


class ExistsError(TuttiError, FileExistsError):
    """EEXIST: content is there and overwrite was not asked for; or done already."""


class NotFoundError(TuttiError, FileNotFoundError):
    """ENOENT: no such path, namespace or parent key."""


class DeniedError(TuttiError, PermissionError):
    """EPERM, EACCES."""


class NoSpaceError(TuttiError):
    """ENOSPC: the space is not there, or not one slot can be had."""


class BusyError(TuttiError):
    """EBUSY: another process or thread has it."""


class AgainError(TuttiError, BlockingIOError):
    """EAGAIN: a bounded queue or table is full; later it may not be."""


class StaleError(TuttiError):
    """ESTALE: a lease, plan or completion of an older epoch, or expired."""


class CorruptError(TuttiError):
    """EBADMSG: bytes are damaged, or not what they should be."""


class DeadlineError(TuttiError, TimeoutError):
    """ETIMEDOUT: not done by the deadline. It goes on; ask again."""


class CanceledError(TuttiError):
    """ECANCELED: this store was dropped earlier."""


class DeadLaneError(TuttiError):
    """ENOTRECOVERABLE: the lane is dead and its memory may still be written: keep the blocks and stop."""


class NoPoolError(TuttiError):
    """ENOMEDIUM: there is no pool; format it first."""


class NoDeviceError(TuttiError):
    """ENODEV: a device of the pool is missing or truncated."""


class VersionError(TuttiError):
    """EPROTONOSUPPORT: the pool is of another version."""


class NotSupportedError(TuttiError):
    """ENOTSUP: not on this machine, or not in this build."""


class NoMemoryError(TuttiError, MemoryError):
    """ENOMEM."""


class ForkedError(TuttiError):
    """The object was made before os.fork(), and this is the child: its threads stayed with the parent."""


_CLASS: dict[int, type[TuttiError]] = {
    _e.EINVAL: InvalidError, _e.EEXIST: ExistsError, _e.ENOENT: NotFoundError, _e.EPERM: DeniedError,
    _e.EACCES: DeniedError, _e.ENOSPC: NoSpaceError, _e.EBUSY: BusyError, _e.EAGAIN: AgainError,
    _e.ESTALE: StaleError, _e.EBADMSG: CorruptError, _e.ETIMEDOUT: DeadlineError, _e.ECANCELED: CanceledError,
    _e.ENOTRECOVERABLE: DeadLaneError, _e.ENODEV: NoDeviceError, _e.ENOMEDIUM: NoPoolError,
    _e.EPROTONOSUPPORT: VersionError,
    _e.ENOTSUP: NotSupportedError, _e.ENOMEM: NoMemoryError,
}


def error_of(result: int, message: str) -> TuttiError:
    """The exception for a result of the library (not 0): a negative errno or a positive NVMe status."""
    if result > 0:
        return NvmeError(result, message)
    return _CLASS.get(-result, TuttiError)(-result, message)
