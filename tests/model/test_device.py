"""Claims about where the model runs: devices, number formats, threads; the machine's files are written by the test."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from model.device import (
    KEPT_BYTES,
    available_threads,
    choose_device,
    choose_dtype,
    give_back_freed_memory,
    has_native_bfloat16,
    keep_freed_memory,
)

CPU = torch.device("cpu")


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> int:
    """So many GPUs, whatever this machine has."""
    count: int = request.param
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    return count


@pytest.mark.parametrize(
    ("gpus", "name", "device"),
    [
        (0, "auto", "cpu"),
        (2, "auto", "cuda:0"),
        (2, "cpu", "cpu"),
        (2, "cuda", "cuda:0"),
        (2, "cuda:1", "cuda:1"),
    ],
    indirect=["gpus"],
)
def test_a_device_is_found(gpus: int, name: str, device: str) -> None:
    """``auto`` is the first GPU where there is one; ``cuda`` is the first, ``cuda:N`` that one."""
    assert choose_device(name) == torch.device(device)


@pytest.mark.parametrize(
    ("gpus", "name"), [(0, "cuda"), (0, "cuda:0"), (1, "cuda:1"), (2, "cuda:7")], indirect=["gpus"]
)
def test_a_gpu_that_is_not_there_is_refused(gpus: int, name: str) -> None:
    """With the name and how many there are; never a silent fall back to the CPU."""
    with pytest.raises(ValueError, match=f"{name!r} was asked for, and PyTorch sees {gpus} GPUs"):
        choose_device(name)


@pytest.mark.parametrize("name", ["mps", "meta", "gpu", "CUDA", "", "cuda:x", "cuda:-1", "xpu:0"])
def test_an_unknown_device_is_refused(name: str) -> None:
    """With the names there are."""
    with pytest.raises(ValueError, match="only auto, cpu, cuda and cuda:N"):
        choose_device(name)


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16"])
def test_a_named_dtype_is_taken(name: str) -> None:
    """On any device."""
    assert choose_dtype(name, CPU) == getattr(torch, name)


@pytest.mark.parametrize("name", ["float64", "int8", "fp16", "", "AUTO"])
def test_an_unknown_dtype_is_refused(name: str) -> None:
    """With the names there are."""
    with pytest.raises(
        ValueError, match=f"dtype {name!r} is not supported, only auto, float32, bfloat16, float16, and int8"
    ):
        choose_dtype(name, CPU)


CPUINFO = {
    "x86 with AVX512-BF16": ("processor\t: 0\nflags\t\t: fpu sse avx2 avx512f avx512_bf16 avx512_vnni\n", True),
    "x86 with AMX": ("flags\t\t: fpu avx512f amx_bf16 amx_tile amx_int8\n", True),
    "x86 without": ("model name\t: bf16 avx512_bf16\nflags\t\t: fpu sse avx2 avx512f avx512_vnni\n", False),
    "Arm with BF16": ("processor\t: 0\nFeatures\t: fp asimd sve i8mm bf16 dgh\n", True),
    "Arm without": ("Features\t: fp asimd evtstrm aes\n", False),
    "no flags": ("processor\t: 0\n", False),
    "nothing": ("", False),
}


@pytest.mark.parametrize("name", CPUINFO)
def test_native_bfloat16_is_read_from_the_flags(name: str, tmp_path: Path) -> None:
    """Only the words of the flags line count, not those of the model's name, and whole words only."""
    content, expected = CPUINFO[name]
    (tmp_path / "cpuinfo").write_text(content)
    assert has_native_bfloat16(CPU, tmp_path / "cpuinfo") is expected


def test_a_machine_without_cpuinfo_has_no_native_bfloat16(tmp_path: Path) -> None:
    """Where nothing can be read nothing is assumed."""
    assert not has_native_bfloat16(CPU, tmp_path / "absent")


@pytest.mark.parametrize(("capability", "native"), [((7, 5), False), ((8, 0), True), ((9, 0), True)])
def test_gpus_from_8_0_multiply_bfloat16(
    capability: tuple[int, int], native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``auto`` is bfloat16 there and float32 before."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    device = torch.device("cuda", 0)
    assert has_native_bfloat16(device) is native
    assert choose_dtype("auto", device) == (torch.bfloat16 if native else torch.float32)


@pytest.mark.parametrize("native", [True, False])
def test_auto_follows_the_hardware(native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """bfloat16 where it is native, else float32."""
    monkeypatch.setattr("model.device.has_native_bfloat16", lambda device: native)
    assert choose_dtype("auto", CPU) == (torch.bfloat16 if native else torch.float32)


@pytest.mark.parametrize("native", [True, False])
def test_bfloat16_that_is_slow_is_served_and_said(
    native: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever asks for it gets it, and learns that float32 is faster where it is."""
    monkeypatch.setattr("model.device.has_native_bfloat16", lambda device: native)
    assert choose_dtype("bfloat16", CPU) == torch.bfloat16
    assert ["float32 is faster" in record.message for record in caplog.records] == [True] * (not native)


def cgroup(folder: Path, version: int, quota: str, period: str) -> Path:
    """Write a control group's CPU limit as the kernel shows it."""
    if version == 2:
        (folder / "cpu.max").write_text(f"{quota} {period}\n")
    else:
        (folder / "cpu").mkdir()
        (folder / "cpu" / "cpu.cfs_quota_us").write_text(f"{quota}\n")
        (folder / "cpu" / "cpu.cfs_period_us").write_text(f"{period}\n")
    return folder


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("quota", "threads"),
    [("0", 1), ("200000", 2), ("250000", 3), ("50000", 1), ("1000", 1), ("6400000", 8), ("800000", 8)],
)
def test_threads_are_the_quota_rounded_up(
    version: int, quota: str, threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2.5 cores keep 3 threads busy, half a core keeps one, and no quota gives more than the affinity's 8."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    assert available_threads(cgroup(tmp_path, version, quota, "100000"), tmp_path / "absent") == threads


@pytest.mark.parametrize(
    ("version", "line", "folder"),
    [(2, "0::/system.slice/eyeline.service", ""), (1, "4:cpu,cpuacct:/system.slice/eyeline.service", "cpu")],
)
@pytest.mark.parametrize("limited", ["", "system.slice", "system.slice/eyeline.service"])
def test_the_least_quota_around_a_process_counts(
    version: int, line: str, folder: str, limited: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As under systemd: of the process's own group, of the slice it is in, or of all."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    own = tmp_path / "own"
    own.write_text(f"9:memory:/elsewhere\n{line}\n")
    for group, cpus in {
        "system.slice/eyeline.service": 7,
        "system.slice": 6,
        "": 5,
        "elsewhere": 1,
        limited: 2,
    }.items():
        (tmp_path / "all" / folder / group).mkdir(parents=True, exist_ok=True)
        names = ["cpu.max"] if version == 2 else ["cpu.cfs_quota_us", "cpu.cfs_period_us"]
        values = [f"{cpus}00000 100000"] if version == 2 else [f"{cpus}00000", "100000"]
        for name, value in zip(names, values, strict=True):
            (tmp_path / "all" / folder / group / name).write_text(f"{value}\n")
    assert available_threads(tmp_path / "all", own) == 2


@pytest.mark.parametrize(
    ("version", "quota", "period"),
    [(2, "max", "100000"), (1, "-1", "100000"), (2, "much", "1"), (1, "5", "0"), (2, "", "")],
)
def test_without_a_quota_the_affinity_counts(
    version: int, quota: str, period: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``max``, ``-1``, and whatever cannot be read are no limit."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5, 9})
    assert available_threads(cgroup(tmp_path, version, quota, period), tmp_path / "absent") == 3
    assert available_threads(tmp_path / "absent", tmp_path / "absent") == 3


def test_without_affinity_the_cores_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system knows no affinity, its cores count; where it knows none of them, one."""
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert available_threads(tmp_path, tmp_path / "absent") == 6
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert available_threads(tmp_path, tmp_path / "absent") == 1


def test_the_c_library_takes_the_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Glibc accepts all three: it refuses a threshold that is too large without a word but in what it returns."""
    mallopt = ctypes.CDLL(None).mallopt
    accepted: list[tuple[int, int, int]] = []

    class Library:
        @staticmethod
        def mallopt(parameter: int, value: int) -> None:
            accepted.append((parameter, value, mallopt(parameter, value)))

    monkeypatch.setattr("ctypes.CDLL", lambda name: Library)
    keep_freed_memory(threads=2)
    assert accepted == [(-3, 32 * 2**20, 1), (-1, KEPT_BYTES, 1), (-8, 2, 1)]


def test_threads_share_pools_of_memory() -> None:
    """Eight threads at a time have no more pools among them than was asked for."""
    code = """
import ctypes, threading
from model.device import keep_freed_memory
keep_freed_memory(threads=3)
everybody = threading.Barrier(8)
def take():
    bytearray(10_000)
    everybody.wait()
threads = [threading.Thread(target=take) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
ctypes.CDLL(None).malloc_stats()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 1 <= done.stderr.count("Arena ") <= 3


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there are no mallopt and no malloc_trim nothing happens."""
    monkeypatch.setattr("ctypes.CDLL", lambda name: object())
    keep_freed_memory(threads=2)
    give_back_freed_memory()


def test_what_was_freed_can_be_given_back() -> None:
    """Memory that glibc keeps for the next batch goes back to the system when it is told to."""
    code = """
from pathlib import Path
from model.device import give_back_freed_memory, keep_freed_memory
def resident(): return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 // 2**20
keep_freed_memory(threads=2)
blocks = [bytearray(2**20) for _ in range(200)]
del blocks
kept = resident()
give_back_freed_memory()
print(kept - resident())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 150
