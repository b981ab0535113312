import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from generator.engines import Engine, EngineError, run
from generator.errors import InputError


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


def test_a_task_that_kills_its_worker_is_named_and_the_others_are_done():
    heard = []
    with pytest.raises(EngineError, match="under way: 2, got '5 of 6 tasks done'"):
        run(die, range(6), 2, heard.append)
    assert sorted(heard) == [0, 1, 3, 4, 5]
    assert not multiprocessing.active_children()


def die_once(task):
    number, folder = task
    if number == 2 and not (folder / "died").exists():
        (folder / "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def test_a_worker_that_dies_is_replaced(tmp_path):
    assert run(die_once, [(number, tmp_path) for number in range(6)], 2) == list(range(6))


def sleep(_):
    time.sleep(60)


def test_a_run_in_which_nothing_moves_is_given_up():
    with pytest.raises(EngineError, match=r"no task ended in 0\.5 s"):
        run(sleep, range(4), Engine(workers=2, stall=0.5))
    assert not multiprocessing.active_children()


def wrong_input(_):
    raise InputError("what", 1, "2", "fix")


def test_errors_keep_their_kind_across_processes():
    with pytest.raises(InputError, match="what, got 1, allowed: 2, fix"):
        run(wrong_input, range(4), 2)


ORPHAN = """
import sys, time
from generator.engines import run

def stay(path):
    open(path, "w").write(str(__import__("os").getpid()))
    time.sleep(60)

if __name__ == "__main__":
    run(stay, sys.argv[1:], 2)
"""


def test_workers_do_not_outlive_their_parent(tmp_path):
    (tmp_path / "orphan.py").write_text(ORPHAN)
    paths = [tmp_path / "a", tmp_path / "b"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    child = subprocess.Popen([sys.executable, str(tmp_path / "orphan.py"), *map(str, paths)], env=environment)
    until(lambda: all(path.exists() and path.read_text() for path in paths))
    child.kill()
    child.wait()
    until(lambda: not any(Path(f"/proc/{path.read_text()}").exists() for path in paths))


def until(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)
