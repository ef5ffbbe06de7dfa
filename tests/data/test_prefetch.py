"""Work done ahead by threads: in order, bounded, and its mistakes in their place."""

from __future__ import annotations

import threading
import time
from itertools import count, islice

import numpy as np
import pytest

from fewtags.data.prefetch import in_order


@pytest.mark.parametrize("workers", [0, 1, 4])
def test_results_come_in_order_however_long_each_takes(workers):
    seconds = np.random.default_rng(0).uniform(0, 0.01, 40)

    def work(item: int) -> int:
        time.sleep(seconds[item])
        return item

    assert list(in_order(work, range(40), workers=workers, ahead=5)) == list(range(40))


def test_no_more_is_taken_than_may_wait():
    """An endless list is no problem, and memory is that of `ahead` results."""
    taken = []
    items = (taken.append(number) or number for number in count())
    results = in_order(lambda item: item, items, workers=2, ahead=6)
    for received in range(1, 20):
        assert next(results) == received - 1
        assert len(taken) <= received + 6
    results.close()


def test_work_goes_on_while_the_caller_is_busy():
    done = threading.Event()
    results = in_order(lambda item: done.set() if item == 3 else None, range(4), workers=1, ahead=3)
    next(results)
    assert done.wait(60)  # nobody has asked for it yet
    results.close()


def test_an_error_is_raised_in_its_place_and_ends_the_threads():
    before = threading.active_count()
    results = in_order(lambda item: 1 // (3 - item), range(100), workers=2, ahead=10)
    assert list(islice(results, 3)) == [0, 0, 1]
    with pytest.raises(ZeroDivisionError):
        next(results)
    assert threading.active_count() == before
