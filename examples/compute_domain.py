#!/usr/bin/env python3
"""PyTorch in the compute domain: its kernels keep off the SMs of the I/O kernels, which then start at once.

    python3 compute_domain.py [LIBTUTTI.SO]

Makes a stream on the SMs that lanes of two SMs leave (tutti_compute_stream), runs a matrix product there and, for
comparison, on all SMs, checks that the results are equal, and prints what the two SMs cost. Needs a GPU, PyTorch, and a
library built with `make cuda`.
"""
import ctypes
import sys
import time

IO_SMS = 2
SIZE = 8192
RUNS = 10


def compute_stream(library, io_sms):
    """A torch stream on the SMs that lanes of io_sms leave, and their number."""
    import torch
    torch.cuda.init()
    stream, sms = ctypes.c_void_p(), ctypes.c_uint32()
    library.tutti_error_message.restype = ctypes.c_char_p
    if library.tutti_compute_stream(ctypes.c_uint32(io_sms), 0, ctypes.byref(stream), ctypes.byref(sms)):
        raise OSError(library.tutti_error_message().decode())
    return torch.cuda.ExternalStream(stream.value), sms.value


def seconds(torch, stream, a, b):
    """The median time of a @ b, and its result."""
    times = []
    with torch.cuda.stream(stream):
        for _ in range(RUNS):
            stream.synchronize()
            begin = time.perf_counter()
            product = a @ b
            stream.synchronize()
            times.append(time.perf_counter() - begin)
    return sorted(times)[RUNS // 2], product


def main():
    try:
        import torch
    except ImportError:
        print("skipped: no PyTorch")
        return 0
    if not torch.cuda.is_available():
        print("skipped: no GPU")
        return 0
    library = ctypes.CDLL(sys.argv[1] if len(sys.argv) > 1 else "libtutti.so.0")
    domain, sms = compute_stream(library, IO_SMS)
    a, b = (torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    torch.cuda.synchronize()
    all_s, expected = seconds(torch, torch.cuda.Stream(), a, b)
    domain_s, product = seconds(torch, domain, a, b)
    equal = bool(torch.allclose(product, expected))
    print(f"{sms} SMs for compute: {domain_s * 1e3:.3f} ms a product, {all_s * 1e3:.3f} ms on all; "
          f"{'equal' if equal else 'DIFFERENT'} results")
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
