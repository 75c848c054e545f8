"""Where the model runs: device, number format, threads. Reads the machine, never the environment."""

from __future__ import annotations

import ctypes
import logging
import math
import os
from pathlib import Path

import torch

log = logging.getLogger("eyeline")

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

KEPT_BYTES = 256 * 2**20
"""Freed memory that stays with the process."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # malloc.h
_LARGEST_MMAP_THRESHOLD = 32 * 2**20  # glibc refuses more

_NATIVE_BFLOAT16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""Words in /proc/cpuinfo of processors that multiply bfloat16 natively (x86: the first two, Arm: the last)."""


def choose_device(name: str) -> torch.device:
    """Resolve ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.

    Raises
    ------
    ValueError
        If the name is unknown, or a GPU is named and there is none of that number.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:  # torch's own message lists two dozen kinds of device
        raise ValueError(f"device {name!r} is not supported, only auto, cpu, cuda and cuda:N") from error
    if device.type == "cuda":
        count = torch.cuda.device_count()
        index = device.index or 0
        if index >= count:
            raise ValueError(f"device {name!r} was asked for, and PyTorch sees {count} GPUs")
        return torch.device("cuda", index)
    if device.type != "cpu":
        raise ValueError(f"device {name!r} is not supported, only auto, cpu, cuda and cuda:N")
    return device


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """Resolve ``auto``: bfloat16 where the hardware multiplies it natively, else float32.

    bfloat16 on a processor that does not multiply it is served as asked, slowly, and a warning says so: a product
    that took a Zen 1 core 46 ms in float32 took 288 ms.

    Raises
    ------
    ValueError
        If the name is unknown.
    """
    if name == "auto":
        return torch.bfloat16 if has_native_bfloat16(device) else torch.float32
    if name not in DTYPES:
        raise ValueError(f"dtype {name!r} is not supported, only auto, {', '.join(DTYPES)}, and int8 to serve on a CPU")
    if name == "bfloat16" and not has_native_bfloat16(device):
        log.warning("%s does not multiply bfloat16 natively: float32 is faster here", device)
    return DTYPES[name]


def has_native_bfloat16(device: torch.device, cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether bfloat16 products run at the hardware's own speed: CUDA 8.0 and newer, AVX512-BF16, AMX, Arm BF16."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    try:
        lines = cpuinfo.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return False
    flags = next((line for line in lines if line.lower().startswith(("flags", "features"))), "")
    return not _NATIVE_BFLOAT16_FLAGS.isdisjoint(flags.split())


def keep_freed_memory(threads: int) -> None:
    """Let the C library keep up to :data:`KEPT_BYTES` of what is freed, instead of giving large buffers back at once.

    Parameters
    ----------
    threads : int
        Those that compute at a time.

    Notes
    -----
    Each layer of each batch frees and takes the same few buffers of megabytes. Given back, they are mapped anew page by
    page: with all-MiniLM-L6-v2 in int8, where float32 stands between the products, a thread other than the main one
    met 400 faults for every text of 25 tokens, which took a fifth of its processor time; now next to none. The
    smaller buffers of bfloat16 are kept by default. Where the C library is not glibc this does nothing.

    By default each thread takes from a pool (arena) of its own, up to eight pools a core, and what one pool keeps no
    other can use: a server of two cores that reloaded its model twenty times under load grew from 620 to 770 MB. With
    as many pools as threads compute it stayed at 560 and was as fast; with two more it varied up to 630. With one for
    two threads that compute, a batch in int8 takes 1.01 to 1.04 times as long.

    References
    ----------
    mallopt(3)
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)
        mallopt(_M_ARENA_MAX, threads)


def give_back_freed_memory() -> None:
    """Give back to the system what :func:`keep_freed_memory` keeps: for when a whole model was let go.

    It is taken again as batches need it. Where the C library is not glibc this does nothing.

    References
    ----------
    malloc_trim(3)
    """
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)


def available_threads(cgroups: Path = Path("/sys/fs/cgroup"), own_groups: Path = Path("/proc/self/cgroup")) -> int:
    """Count the CPUs this process may keep busy: the smaller of its affinity and its cgroup's quota, at least 1.

    Notes
    -----
    The host's core count is what makes servers crawl in a container limited to 2 of 64 cores: 64 threads then take
    turns on 2 cores, and every parallel step waits for the one that was put to sleep. A container mostly sees its own
    group as the root of all. Elsewhere, such as under systemd, a group is bound by those around it as well.

    References
    ----------
    cgroups(7)
    """
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = [quota for group in _own_groups(cgroups, own_groups) if (quota := _cgroup_cpus(group)) is not None]
    return max(1, min([affinity, *map(math.ceil, quotas)]))


def _own_groups(cgroups: Path, own_groups: Path) -> list[Path]:
    """Return the folders of this process's control group and of all around it, version 2 or 1."""
    try:
        lines = own_groups.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    groups = [cgroups, cgroups / "cpu"]
    for line in lines:  # "0::/path" of version 2, "4:cpu,cpuacct:/path" of version 1
        _, controllers, path = line.split(":", 2)
        if not controllers or "cpu" in controllers.split(","):
            root = cgroups / "cpu" if controllers else cgroups
            own = root / path.lstrip("/")
            groups += [own, *(around for around in own.parents if around.is_relative_to(root))]
    return groups


def _cgroup_cpus(group: Path) -> float | None:
    """Read the CPU quota of a control group, version 2 or 1; None where there is none."""
    try:
        if (group / "cpu.max").exists():  # version 2: "max 100000" or "200000 100000"
            quota, period = (group / "cpu.max").read_text(encoding="ascii").split()
        else:
            quota = (group / "cpu.cfs_quota_us").read_text(encoding="ascii").strip()
            period = (group / "cpu.cfs_period_us").read_text(encoding="ascii").strip()
        return int(quota) / int(period) if quota not in ("max", "-1") else None
    except (OSError, ValueError, ZeroDivisionError):
        return None
