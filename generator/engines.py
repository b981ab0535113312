"""Where shards are built: in this process, in processes of this machine, or on a cluster. Everything is a `concurrent.futures.Executor`.

A task is a pure function of one argument that may run twice and commits its own work; nothing here knows what it does. Tasks run in any
order and on any worker, receipts come back in the order of the tasks. A worker that dies costs its task a second try, and what no engine
can survive ends as one error: whatever was finished is kept, and any engine can go on from there.
"""

import contextlib
import importlib.util
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Executor, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from generator.errors import DataError, InputError

Task = TypeVar("Task")
Receipt = TypeVar("Receipt")

WINDOW: Final = 4
"""Tasks submitted per worker at a time: enough to keep it busy, few enough that a million shards do not fill the memory."""
DEATHS: Final = 3
"""Times that workers may die without a task being finished in between."""
STALL: Final = 600.0
"""Seconds without a finished task after which a run is given up."""
KINDS: Final = ("local", "dask", "ray")


class EngineError(DataError):
    """The engine failed: a worker that always dies, a scheduler that is gone, or nothing that moves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """An engine and how many workers it has; a cluster at an address has its own number."""

    kind: str = "local"
    address: str = ""
    workers: int = 1
    stall: float = STALL

    def __str__(self) -> str:
        return f"{self.kind}:{self.address}" if self.address else self.kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A running engine: where to submit, how many tasks at once, and what it raises when it is lost."""

    executor: Executor
    workers: int
    lost: tuple[type[BaseException], ...] = (CancelledError,)
    kill: Callable[[], None] = lambda: None
    """Ends workers that will not end by themselves."""


def parse(text: str, workers: int, stall: float = STALL) -> Engine:
    """The engine that `--engine` names: `local`, `dask[:ADDRESS]`, `ray[:ADDRESS]`. Raises InputError if it cannot run here."""
    kind, colon, address = text.partition(":")
    if kind not in KINDS or (colon and not address) or (kind == "local" and colon):
        raise InputError("unknown --engine", text, "local, dask, dask:tcp://HOST:PORT, ray, ray:ADDRESS", "pass one of them")
    module = {"dask": "distributed", "ray": "ray"}.get(kind)
    if module is not None and importlib.util.find_spec(module) is None:
        raise InputError("--engine is not installed", text, "local, or an engine that is", f"pip install 'kernelswarm[{kind}]'")
    return Engine(kind=kind, address=address, workers=workers, stall=stall)


def run(
    work: Callable[[Task], Receipt], tasks: Sequence[Task], engine: Engine | int, on_receipt: Callable[[Receipt], None] = lambda _: None
) -> list[Receipt]:
    """Run `work` on every task and return the receipts in order; `on_receipt` hears of each as it comes.

    A number is that many local workers, and one means this process. An error in a task ends the run and is raised here; an interrupt
    waits for the tasks under way. Raises EngineError if the engine fails.
    """
    engine = Engine(workers=engine) if isinstance(engine, int) else engine
    if engine.kind == "local" and (engine.workers == 1 or len(tasks) <= 1):
        return [_told(work(task), on_receipt) for task in tasks]
    receipts: dict[int, Receipt] = {}
    broken = [0] * len(tasks)
    """How often the workers died while a task was under way, on them or next in line."""
    deaths = 0
    while len(receipts) < len(tasks):
        before = len(receipts)
        turn, alone = _turn([number for number in range(len(tasks)) if number not in receipts], broken)
        live: dict[Future[Receipt], int] = {}
        with _opened(engine, 1 if alone else min(engine.workers, len(turn))) as opened:
            try:
                _drive(opened, work, tasks, turn, engine.stall, 1 if alone else WINDOW * opened.workers, receipts, live, on_receipt)
            except BrokenExecutor as error:
                for number in live.values():
                    broken[number] += 1
                deaths = 1 if len(receipts) > before else deaths + 1
                if deaths > DEATHS:
                    raise _failed("workers keep dying, killed or out of memory", receipts, tasks, live, "use fewer --workers") from error
            except opened.lost as error:
                opened.kill()
                raise _failed(f"the engine {engine} is lost", receipts, tasks, live, "run the same command again to go on") from error
    return [receipts[number] for number in range(len(tasks))]


def _turn(missing: Sequence[int], broken: Sequence[int]) -> tuple[list[int], bool]:
    """What to run next: tasks under which workers died least; and whether one by one, so that a task that kills its worker has a name."""
    least = min(broken[number] for number in missing)
    return [number for number in missing if broken[number] == least], least > 1


def _drive(
    opened: Opened,
    work: Callable[[Task], Receipt],
    tasks: Sequence[Task],
    turn: Sequence[int],
    stall: float,
    window: int,
    receipts: dict[int, Receipt],
    live: dict[Future[Receipt], int],
    on_receipt: Callable[[Receipt], None],
) -> None:
    """Keep a window of the tasks of this turn submitted until all are done."""
    waiting = iter(turn)
    while True:
        while len(live) < window and (number := next(waiting, None)) is not None:
            live[opened.executor.submit(work, tasks[number])] = number
        if not live:
            return
        done, _ = wait(live, timeout=stall, return_when=FIRST_COMPLETED)
        if not done:
            opened.kill()
            raise _failed(f"no task ended in {stall:g} s", receipts, tasks, live, "run the same command again to go on")
        for future in done:
            receipt = future.result()
            receipts[live.pop(future)] = receipt
            _told(receipt, on_receipt)


@contextlib.contextmanager
def _opened(engine: Engine, workers: int) -> Iterator[Opened]:
    if engine.kind == "local":
        with _pool(workers) as opened:
            yield opened
        return
    from generator import clusters

    with clusters.opened(engine.kind, engine.address, engine.workers) as (executor, slots, lost):
        yield Opened(executor=executor, workers=slots, lost=(CancelledError, *lost))


@contextlib.contextmanager
def _pool(workers: int) -> Iterator[Opened]:
    """Spawned processes that end with this one."""
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker)

    def kill() -> None:
        for process in list(getattr(pool, "_processes", None) or {}):
            with contextlib.suppress(OSError):
                os.kill(process, signal.SIGKILL if hasattr(signal, "SIGKILL") else signal.SIGTERM)

    try:
        yield Opened(executor=pool, workers=workers, kill=kill)
    finally:
        pool.shutdown(cancel_futures=True)


def _failed(what: str, receipts: dict[int, Any], tasks: Sequence[Any], live: dict[Any, int], fix: str) -> EngineError:
    under_way = ", ".join(str(getattr(tasks[number], "name", tasks[number])) for number in sorted(live.values())[:4])
    return EngineError(f"{what}, under way: {under_way or 'nothing'}", f"{len(receipts)} of {len(tasks)} tasks done", "all", fix)


def _told(receipt: Receipt, on_receipt: Callable[[Receipt], None]) -> Receipt:
    on_receipt(receipt)
    return receipt


def _start_worker() -> None:
    """Ctrl-C reaches the whole process group and only the parent answers it; a worker whose parent has died ends at once."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: Any) -> None:
    parent.join()
    os._exit(1)
