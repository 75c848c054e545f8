"""Claims about the lanes: one core each, parts of like size, equal texts together, and nothing left running."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from model.lanes import MAX_UNEVENNESS, PARTS_PER_LANE, SMALLEST_OF_SEVERAL, Lanes, lane_threads

WAIT_SECONDS = 10.0


@pytest.fixture(scope="module")
def two() -> Lanes:
    """Two lanes."""
    return Lanes(2)


def texts_of(lengths: list[int]) -> list[list[int]]:
    """Texts of so many tokens, no two alike."""
    return [[place] * length for place, length in enumerate(lengths)]


def cores_of_a_later_thread() -> int:
    """How many cores a thread computes on that is made now."""
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(torch.get_num_threads).result()


# ---- threads


def test_one_thread_needs_no_lane() -> None:
    """Nothing is started, and every batch stays whole."""
    lanes = Lanes(1)
    assert not lanes
    assert lanes.native_ids == ()
    assert lanes.split(texts_of([5, 7, 900])) == [[0, 1, 2]]


def test_a_lane_computes_alone_and_all_others_as_before() -> None:
    """Whoever made the lanes, and threads that come later, use as many cores as before."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        lanes = Lanes(2)
        both_there = threading.Barrier(2)

        def number(_: int) -> int:
            both_there.wait(WAIT_SECONDS)
            torch.ones(200, 200) @ torch.ones(200, 200)  # whatever a first product makes a thread begin with
            return torch.get_num_threads()

        assert lanes.run(number, [0, 1]) == [1, 1]
        assert torch.get_num_threads() == 3
        assert cores_of_a_later_thread() == 3
    finally:
        torch.set_num_threads(before)


def test_lanes_end_with_their_owner() -> None:
    """A model that is let go leaves no thread behind."""
    lanes = Lanes(3)
    threads = [thread for thread in threading.enumerate() if thread.native_id in lanes.native_ids]
    assert len(threads) == len(lanes) == 3
    native_ids = set(lanes.native_ids)
    assert native_ids <= set(lane_threads())
    del lanes
    assert native_ids.isdisjoint(lane_threads())
    for thread in threads:
        thread.join(WAIT_SECONDS)
        assert not thread.is_alive()


def test_lanes_that_do_not_begin_leave_the_process_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system refuses a thread, those that are there end, and later threads compute on as many cores."""
    before, started = torch.get_num_threads(), threading.Thread.start
    refusals = iter([False, True])

    def start(thread: threading.Thread) -> None:
        if next(refusals, False):
            raise RuntimeError("can't start new thread")
        started(thread)

    try:
        torch.set_num_threads(3)
        others = set(threading.enumerate())
        monkeypatch.setattr(threading.Thread, "start", start)
        with pytest.raises(RuntimeError, match="new thread"):
            Lanes(2)
        for thread in set(threading.enumerate()) - others:
            thread.join(WAIT_SECONDS)
            assert not thread.is_alive()
        assert cores_of_a_later_thread() == 3
    finally:
        torch.set_num_threads(before)


# ---- running


def test_results_are_in_the_order_of_the_parts(two: Lanes) -> None:
    """Also where a later part is done first."""
    later_is_done = threading.Event()

    def run(part: int) -> int:
        if part == 0:
            assert later_is_done.wait(WAIT_SECONDS)
        if part == 2:
            later_is_done.set()
        return part * 10

    assert two.run(run, [0, 1, 2, 3]) == [0, 10, 20, 30]


@pytest.mark.parametrize("failing", [0, 1])
def test_a_failure_is_raised_when_nothing_runs_any_more(failing: int, two: Lanes) -> None:
    """Whichever part fails, the other lane ends what it is at, and nothing more is begun."""
    other_runs, begun, ended = threading.Event(), [], []

    def run(part: int) -> None:
        begun.append(part)
        if part == failing:
            assert other_runs.wait(WAIT_SECONDS)
            raise MemoryError("no room")
        other_runs.set()
        time.sleep(0.3 if part == 1 - failing else 0.05)
        ended.append(part)

    with pytest.raises(MemoryError, match="no room"):
        two.run(run, range(100))
    assert sorted(ended) == sorted(set(begun) - {failing})
    assert len(begun) < 5
    assert two.run(str, [1]) == ["1"]


# ---- cutting


@pytest.mark.parametrize(
    ("lengths", "sizes"),
    [
        ([25], [25]),
        ([25, 25], [25, 25]),
        ([25] * 4, [50, 50]),
        ([10, 40, 30, 20], [40, 60]),  # longest first
        ([25] * 3, [75]),  # 50 and 25: all cores together are faster
        ([200, 10, 10], [220]),
        ([64] * 32, [512] * 4),  # large: two parts a lane
        ([], [0]),
    ],
)
def test_parts_of_some_batches(two: Lanes, lengths: list[int], sizes: list[int]) -> None:
    """Even shares where texts allow, the batch whole where they do not."""
    parts = two.split(texts_of(lengths))
    assert [sum(lengths[index] for index in part) for part in parts] == sizes


@given(
    lengths=st.lists(st.integers(1, 300), min_size=1, max_size=60),
    num_kinds=st.integers(1, 60),
    num_lanes=st.integers(2, 5),
)
def test_parts_are_even_and_hold_every_text_once(
    lanes_of: dict[int, Lanes], lengths: list[int], num_kinds: int, num_lanes: int
) -> None:
    """Equal texts are in one part; no lane has far more to do than another, whichever takes what."""
    kinds = texts_of(lengths)[:num_kinds]
    texts = [kinds[index % len(kinds)] for index in range(len(lengths))]
    random.Random(len(lengths)).shuffle(texts)
    lanes = lanes_of[num_lanes]
    parts = lanes.split(texts)
    assert sorted(index for part in parts for index in part) == list(range(len(texts)))
    homes = [{tuple(texts[index]) for index in part} for part in parts]
    assert sum(map(len, homes)) == len(set().union(*homes))
    num_tokens = sum(map(len, texts))
    if len(parts) > 1:
        loads = [0] * num_lanes
        for part in parts:
            loads[loads.index(min(loads))] += sum(len(texts[index]) for index in part)
        assert max(loads) <= MAX_UNEVENNESS * num_tokens / num_lanes
        is_large = num_tokens >= num_lanes * PARTS_PER_LANE * SMALLEST_OF_SEVERAL
        assert len(parts) <= num_lanes * (PARTS_PER_LANE if is_large else 1)


@pytest.fixture(scope="module")
def lanes_of() -> dict[int, Lanes]:
    """Lanes by their number."""
    return {number: Lanes(number) for number in range(2, 6)}
