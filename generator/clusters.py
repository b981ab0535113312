"""Dask and Ray behind `concurrent.futures.Executor`. Imported only when asked for; neither is needed to build on one machine.

Both keep a task alive when its worker dies. What they cannot survive, a lost scheduler above all, is named in the third value that
`opened` yields. Processes that are started here listen on loopback only.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from typing import Any, Final

from generator.errors import InputError

Opening = tuple[Executor, int, tuple[type[BaseException], ...]]

PINS: Final = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
PATIENCE: Final = 60
"""Seconds to wait for a scheduler and its first worker."""


@contextlib.contextmanager
def opened(kind: str, address: str, workers: int) -> Iterator[Opening]:
    """Executor, number of workers, and the errors that mean it is lost. Raises InputError if nothing answers at `address`."""
    with {"dask": _dask, "ray": _ray}[kind](address, workers) as opening:
        yield opening


@contextlib.contextmanager
def _dask(address: str, workers: int) -> Iterator[Opening]:
    import dask
    import distributed

    # Dask's nanny sets MALLOC_TRIM_THRESHOLD_, which costs NumPy code 40 % CPU: this replaces all it sets.
    with (
        dask.config.set({"distributed.nanny.pre-spawn-environ": PINS, "distributed.worker.daemon": False}),
        contextlib.ExitStack() as stack,
    ):
        where: Any = address
        if not address:
            where = distributed.LocalCluster(
                n_workers=workers,
                threads_per_worker=1,
                host="127.0.0.1",
                dashboard_address="127.0.0.1:0",
                worker_dashboard_address="127.0.0.1:0",
                silence_logs=50,
            )
            stack.enter_context(where)
        try:
            client = stack.enter_context(distributed.Client(where, timeout=PATIENCE, set_as_default=False))
            client.wait_for_workers(1, timeout=PATIENCE)
        except (OSError, ValueError) as error:
            raise _silent("dask", address, error) from error
        executor = client.get_executor(pure=False, retries=0)
        slots = sum(client.nthreads().values())
        yield executor, slots, (distributed.KilledWorker, distributed.comm.CommClosedError)


class RayExecutor(Executor):
    """Ray tasks as futures; a task whose worker dies is tried again."""

    def __init__(self, ray: Any) -> None:
        self._task = ray.remote(num_cpus=1, max_retries=3)(_outcome)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        told: Future[Any] = Future()
        told.set_running_or_notify_cancel()
        self._task.remote(fn, args, kwargs).future().add_done_callback(lambda done: _pass_on(done, told))
        return told


def _outcome(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, BaseException | None]:
    """Result and error of a call: Ray would wrap the error in one of its own."""
    try:
        return fn(*args, **kwargs), None
    except Exception as error:  # noqa: BLE001 - it is raised where the future is read
        return None, error


def _pass_on(done: Future[Any], told: Future[Any]) -> None:
    error = done.exception()
    result, failed = (None, error) if error is not None else done.result()
    if failed is not None:
        told.set_exception(failed)
    else:
        told.set_result(result)


@contextlib.contextmanager
def _ray(address: str, workers: int) -> Iterator[Opening]:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    options: dict[str, Any] = {} if address else {"num_cpus": workers, "include_dashboard": False}
    try:
        ray.init(address or "local", log_to_driver=False, logging_level="ERROR", **options)
    except (OSError, ValueError, RuntimeError) as error:
        raise _silent("ray", address, error) from error
    try:
        yield RayExecutor(ray), int(ray.cluster_resources().get("CPU", 1)), (ray.exceptions.RayError,)
    finally:
        ray.shutdown()


def _silent(kind: str, address: str, error: BaseException) -> InputError:
    why = " ".join(str(error).split()) or type(error).__name__
    return InputError(f"no {kind} workers answer ({why})", f"{kind}:{address}", "a running cluster with a worker", "check the address")
