"""Running per-tensor jobs: read ahead, compute, write, on a fixed number of threads."""

import os
import queue
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch

Loaded = TypeVar("Loaded")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Job:
    """One unit of a run.

    Attributes:
        name: the tensor it is about.
        cost: relative time of its computation, for balance.
        memory: bytes it takes while in flight.
        size: bytes it reads, for progress.
    """

    name: str
    cost: float
    memory: int
    size: int


@dataclass(frozen=True)
class Progress:
    """Where a run stands after a job."""

    name: str
    done: int
    total: int
    bytes_done: int
    bytes_total: int


_here = threading.local()


def current_device() -> torch.device:
    """The device that the work of this thread is to compute on."""
    return torch.device(getattr(_here, "device", "cpu"))


def default_workers() -> int:
    """One per CPU this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory_budget() -> int:
    """Bytes that jobs in flight may take together: 40 % of what is available now."""
    try:
        return int(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * 0.4)
    except (ValueError, OSError):
        return 4 * 2**30


def worker_count(workers: int | None, devices: Sequence[str]) -> int:
    """Threads that compute: those asked for, or one per CPU, on the CPU; elsewhere one per
    device."""
    return (workers or default_workers()) if list(devices) == ["cpu"] else len(devices)


def memory_limit(jobs: Sequence[Job], workers: int) -> int:
    """Bytes that jobs in flight may take together: what keeps every worker busy with jobs of the
    usual size, or one of the largest alone; `memory_budget` at most, unless a single job exceeds
    it."""
    largest = max((job.memory for job in jobs), default=0)
    half = sum(job.cost for job in jobs) / 2
    usual = 0
    for job in sorted(jobs, key=lambda job: job.memory):
        usual = job.memory
        half -= job.cost
        if half <= 0:
            break
    return max(largest, min(memory_budget(), usual * (workers + 1)))


def drain(run: Generator[Progress, None, Result], report: Callable[[Progress], None] | None):
    """Runs a generator of events to its end, and returns its result; it is closed also where
    `report` raises."""
    with closing(run):
        while True:
            try:
                event = next(run)
            except StopIteration as stop:
                return stop.value
            if report is not None:
                report(event)


def run_jobs(
    jobs: Sequence[Job],
    load: Callable[[Job], Any] | None,
    work: Callable[[Job, Any], Result],
    workers: int | None,
    devices: Sequence[str],
    results: dict[str, Result] | None = None,
) -> Iterator[Progress]:
    """Runs the jobs and yields a `Progress` after each; `results` collects what they return, by
    name. On the CPU `workers` threads compute, None is one per CPU; elsewhere one per device."""
    count = worker_count(workers, devices)
    runner = Runner(
        load or (lambda job: None),
        work,
        workers=max(1, min(count, len(jobs))),
        devices=devices,
        memory=memory_limit(jobs, count),
    )
    total, seen = sum(job.size for job in jobs), 0
    with closing(runner.run(jobs)) as finished:
        for number, (job, result) in enumerate(finished, 1):
            seen += job.size
            if results is not None:
                results[job.name] = result
            yield Progress(job.name, number, len(jobs), seen, total)


class Runner(Generic[Loaded, Result]):
    """Computes every job once, the costliest first, on `workers` threads of one compute thread
    each, so that results do not depend on how many there are.

    Args:
        load: reads a job's inputs, on one thread of its own, ahead of the work.
        work: computes and writes; its result is yielded.
        workers: ≥ 1.
        devices: what `current_device` is in the work, the first for the first worker and so on.
        memory: bytes in flight, see `Job.memory`; a single job may exceed it.
    """

    def __init__(
        self,
        load: Callable[[Job], Loaded],
        work: Callable[[Job, Loaded], Result],
        *,
        workers: int,
        memory: int,
        devices: Sequence[str] = ("cpu",),
    ) -> None:
        self._load = load
        self._work = work
        self._workers = workers
        self._devices = devices
        self._memory = memory
        self._in_flight = 0
        self._room = threading.Condition()
        self._stopped = False
        self._ready: queue.Queue[tuple[Job, Loaded] | None] = queue.Queue(max(2, workers))
        self._finished: queue.Queue[tuple[Job, Result] | BaseException] = queue.Queue()

    def run(self, jobs: Sequence[Job]) -> Generator[tuple[Job, Result], None, None]:
        """Yields (job, result) as jobs finish; the first failure is raised once all threads have
        stopped. Closing the iterator, or an interrupt, stops them too."""
        ordered = sorted(jobs, key=lambda job: (-job.cost, job.name))
        threads_before = torch.get_num_threads()
        torch.set_num_threads(1)
        threads = [threading.Thread(target=self._read, args=(ordered,), daemon=True)]
        for number in range(self._workers):
            device = self._devices[number % len(self._devices)]
            threads.append(threading.Thread(target=self._compute, args=(device,), daemon=True))
        tf32 = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = False  # ten bits of mantissa are not fp32
        try:
            for thread in threads:
                thread.start()
            for _ in ordered:
                outcome = self._finished.get()
                if isinstance(outcome, BaseException):
                    raise outcome
                yield outcome
        finally:
            self._stop()
            for thread in threads:
                if thread.ident is not None:  # it was started
                    thread.join()
            torch.set_num_threads(threads_before)
            torch.backends.cuda.matmul.allow_tf32 = tf32

    def _read(self, jobs: Sequence[Job]) -> None:
        try:
            for job in jobs:
                with self._room:
                    while not self._stopped and not self._fits(job):
                        self._room.wait()
                    if self._stopped:
                        return
                    self._in_flight += job.memory
                if not self._put((job, self._load(job))):
                    return
            for _ in range(self._workers):
                self._put(None)
        except BaseException as error:
            self._finished.put(error)

    def _fits(self, job: Job) -> bool:
        return not self._in_flight or self._in_flight + job.memory <= self._memory

    def _put(self, item: tuple[Job, Loaded] | None) -> bool:
        while not self._stopped:
            try:
                self._ready.put(item, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def _compute(self, device: str) -> None:
        _here.device = device
        torch.set_num_threads(1)
        while not self._stopped:
            try:
                item = self._ready.get(timeout=0.1)
            except queue.Empty:
                continue
            if item is None:
                return
            job, loaded = item
            try:
                result = self._work(job, loaded)
            except BaseException as error:
                self._finished.put(error)
                return
            del item, loaded
            with self._room:
                self._in_flight -= job.memory
                self._room.notify_all()
            self._finished.put((job, result))

    def _stop(self) -> None:
        self._stopped = True
        with self._room:
            self._room.notify_all()
