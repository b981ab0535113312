"""Where shards are built: in this process, or in a few processes of this machine.

A task is a pure function of one argument that writes its own file and returns a receipt; nothing here knows what it does. Tasks run in
any order and on any worker, receipts come back in the order of the tasks.
"""

import multiprocessing
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, ProcessPoolExecutor, wait
from typing import Final, TypeVar

from generator.errors import DataError

Task = TypeVar("Task")
Receipt = TypeVar("Receipt")

WINDOW: Final = 4
"""Tasks submitted per worker at a time: enough to keep it busy, few enough that a million shards do not fill the memory."""


class EngineError(DataError):
    """A worker process died."""


def run(
    work: Callable[[Task], Receipt], tasks: Sequence[Task], workers: int, on_receipt: Callable[[Receipt], None] = lambda _: None
) -> list[Receipt]:
    """Run `work` on every task and return the receipts in order; `on_receipt` hears of each as it comes.

    One worker means this process. An error in a task ends the run and is raised here; an interrupt waits for the tasks under way.
    Raises EngineError if a worker dies.
    """
    if workers == 1 or len(tasks) <= 1:
        return [_told(work(task), on_receipt) for task in tasks]
    receipts: dict[int, Receipt] = {}
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(workers, len(tasks)), mp_context=context, initializer=_ignore_interrupts)
    try:
        _drive(pool, work, tasks, WINDOW * workers, receipts, on_receipt)
    except BrokenExecutor as error:
        missing = next(task for number, task in enumerate(tasks) if number not in receipts)
        what = "a worker process died, killed or out of memory"
        raise EngineError(what, f"{len(receipts)} of {len(tasks)} tasks done", f"all, next is {missing}", "use fewer --workers") from error
    finally:
        pool.shutdown(cancel_futures=True)
    return [receipts[number] for number in range(len(tasks))]


def _drive(
    pool: ProcessPoolExecutor,
    work: Callable[[Task], Receipt],
    tasks: Sequence[Task],
    window: int,
    receipts: dict[int, Receipt],
    on_receipt: Callable[[Receipt], None],
) -> None:
    waiting = iter(enumerate(tasks))
    live: dict[Future[Receipt], int] = {}
    while True:
        while len(live) < window and (item := next(waiting, None)) is not None:
            live[pool.submit(work, item[1])] = item[0]
        if not live:
            return
        done, _ = wait(live, return_when=FIRST_COMPLETED)
        for future in done:
            receipts[live.pop(future)] = _told(future.result(), on_receipt)


def _told(receipt: Receipt, on_receipt: Callable[[Receipt], None]) -> Receipt:
    on_receipt(receipt)
    return receipt


def _ignore_interrupts() -> None:
    """Ctrl-C reaches the whole process group; only the parent answers it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
