import multiprocessing
import os
import signal

import pytest

from generator.engines import EngineError, run


def square(number):
    return number * number


def where(_):
    return os.getpid()


def refuse(number):
    if number == 3:
        raise ValueError(f"task {number} cannot be done")
    return number


def die(number):
    if number == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


@pytest.mark.parametrize("workers", [1, 2])
def test_receipts_come_back_in_order(workers):
    heard = []
    assert run(square, range(20), workers, heard.append) == [number * number for number in range(20)]
    assert sorted(heard) == [number * number for number in range(20)]


def test_one_worker_is_this_process():
    assert set(run(where, range(3), 1)) == {os.getpid()}


def test_more_workers_are_other_processes():
    assert os.getpid() not in run(where, range(4), 2)


def test_no_tasks_no_processes():
    assert run(square, [], 8) == []


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_in_a_task_ends_the_run(workers):
    with pytest.raises(ValueError, match="task 3 cannot be done"):
        run(refuse, range(50), workers)
    assert not multiprocessing.active_children()


def test_a_worker_that_dies_is_told():
    with pytest.raises(EngineError, match="a worker process died"):
        run(die, range(6), 2)
    assert not multiprocessing.active_children()
