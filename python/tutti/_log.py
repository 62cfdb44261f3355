"""The library's warnings and notes, to Python's logging."""
from __future__ import annotations

import atexit
import logging
from typing import Any

from ._native import ffi, lib

_logger: logging.Logger | None = None


@ffi.def_extern()  # type: ignore[untyped-decorator]
def py_log(_arg: Any, level: int, message: Any) -> None:
    if _logger is not None:
        _logger.log(logging.WARNING if level <= 1 else logging.INFO, "%s", ffi.string(message).decode(errors="replace"))


def _off() -> None:
    lib.tutti_set_log(ffi.NULL, ffi.NULL)


def log_to(logger: logging.Logger | None) -> None:
    """Sends the library's warnings and notes (INFO) to `logger`; None: nowhere, the default. Call it before a pool or
    lane is opened: threads of theirs may log."""
    global _logger
    _logger = logger
    if logger is None:
        _off()
    else:
        lib.tutti_set_log(lib.py_log, ffi.NULL)
        atexit.register(_off)  # no call into an interpreter that ends
