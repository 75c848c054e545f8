"""Memory that ran out, told from every other failure: whatever the device and the library, it is a ``MemoryError``."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
T = TypeVar("T")

SIGNS = (
    "DefaultCPUAllocator: can't allocate memory",
    "DefaultCPUAllocator: not enough memory",  # the same on Windows
    "CUDA error: out of memory",
    "ALLOC_FAILED",  # cuBLAS and cuDNN
    "bad_alloc",  # C++, in any library
)
"""What a plain RuntimeError says when memory ran out: only CUDA's caching allocator has a class for it."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that there was not enough memory, which less work at a time would mend."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in SIGNS)


def raising_memory_error(function: Callable[P, T]) -> Callable[P, T]:
    """Make ``function`` raise MemoryError whenever memory ran out, with nothing of the failed run kept alive.

    Notes
    -----
    The error that is caught holds its frames, and they hold the tensors of the run: it is let go before the new one is
    raised, or whoever handles that one would find the memory still taken. Memory that CUDA's allocator keeps for
    later goes back as well, as it may be in pieces of the wrong size.

    References
    ----------
    PyTorch, Frequently Asked Questions, "My out of memory exception handler can't allocate memory"
    """

    @wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            message = str(error).partition("\n")[0]
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # the library leaves it untyped
            torch.cuda.empty_cache()
        raise MemoryError(message)

    return wrapped
