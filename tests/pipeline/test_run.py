"""Running jobs on threads: each once, and nothing left behind however it ends."""

import random
import threading
import time
from collections.abc import Callable

import pytest
import torch

from mergekit_rl.pipeline.run import Job, Runner, drain, run_jobs


def jobs(count: int, memory: int = 1) -> list[Job]:
    return [Job(f"job {n}", cost=n % 5, memory=memory, size=10 + n) for n in range(count)]


@pytest.fixture(autouse=True)
def no_thread_is_left():
    """Each test ends with the threads, and torch's thread count, it began with."""
    before, torch_threads = set(threading.enumerate()), torch.get_num_threads()
    yield
    assert set(threading.enumerate()) <= before
    assert torch.get_num_threads() == torch_threads


def in_time(call: Callable[[], object], seconds: float = 20) -> object:
    """What `call` returns or raises, in a thread that must not hang."""
    outcome = []

    def run() -> None:
        try:
            outcome.append((call(), None))
        except BaseException as error:
            outcome.append((None, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), "deadlock"
    result, error = outcome[0]
    if error is not None:
        raise error
    return result


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
@pytest.mark.parametrize("memory", [1, 3, 1000])
def test_every_job_is_done_once_with_what_was_read_for_it(workers: int, memory: int) -> None:
    runner = Runner(lambda j: j.size, lambda j, x: (j.name, x), workers=workers, memory=memory)
    done = in_time(lambda: list(runner.run(jobs(40))))
    assert sorted((job.name, result) for job, result in done) == sorted(
        (job.name, (job.name, job.size)) for job in jobs(40)
    )


def test_the_costliest_are_begun_first() -> None:
    runner = Runner(lambda j: None, lambda j, _: None, workers=1, memory=10)
    costs = [job.cost for job, _ in runner.run(jobs(20))]
    assert costs == sorted(costs, reverse=True)


def test_results_do_not_depend_on_the_number_of_workers() -> None:
    matrix = torch.randn(60, 300, generator=torch.Generator().manual_seed(0))

    def work(job: Job, _: None) -> bytes:
        assert torch.get_num_threads() == 1
        return torch.linalg.svd((job.size * matrix) @ matrix.T)[1].numpy().tobytes()

    found = []
    for workers in (1, 2, 3, 4):
        runner = Runner(lambda job: None, work, workers=workers, memory=10**9)
        found.append({job.name: result for job, result in runner.run(jobs(12))})
    assert all(results == found[0] for results in found)


def test_no_jobs_are_no_results() -> None:
    runner = Runner(lambda j: None, lambda j, x: None, workers=3, memory=1)
    assert in_time(lambda: list(runner.run([]))) == []
    assert list(run_jobs([], None, lambda j, x: None, None, "cpu")) == []


@pytest.mark.parametrize("workers", [1, 4])
def test_jobs_in_flight_stay_within_the_memory(workers: int) -> None:
    lock, held, most = threading.Lock(), [0], [0]

    def load(job: Job) -> None:
        with lock:
            held[0] += job.memory
            most[0] = max(most[0], held[0])

    def work(job: Job, _: None) -> None:
        time.sleep(0.001)
        with lock:
            held[0] -= job.memory

    runner = Runner(load, work, workers=workers, memory=10)
    in_time(lambda: list(runner.run(jobs(60, memory=3))))
    assert 6 <= most[0] <= 9


def test_a_job_larger_than_the_memory_runs_alone() -> None:
    alone = []
    running = []

    def load(job: Job) -> None:
        running.append(job.name)

    def work(job: Job, _: None) -> None:
        time.sleep(0.002)
        if job.memory > 10:
            alone.append(running == [job.name])
        running.remove(job.name)

    mixed = [*jobs(10), *(Job(f"large {n}", cost=2, memory=99, size=1) for n in range(3))]
    runner = Runner(load, work, workers=3, memory=10)
    assert len(in_time(lambda: list(runner.run(mixed)))) == 13
    assert alone == [True] * 3


@pytest.mark.parametrize("where", ["load", "work"])
@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("memory", [1, 100])
def test_the_first_failure_is_raised_when_all_threads_have_ended(
    where: str, workers: int, memory: int
) -> None:
    def fail(job: Job, *_: object) -> None:
        if job.name == "job 7":
            raise OSError("disk")

    def fine(job: Job, *_: object) -> None:
        time.sleep(0.001)

    load, work = (fail, fine) if where == "load" else (fine, fail)
    runner = Runner(load, work, workers=workers, memory=memory)
    before = threading.active_count()

    def run() -> None:
        try:
            list(runner.run(jobs(30)))
        finally:
            assert threading.active_count() == before + 1  # that of `in_time`

    with pytest.raises(OSError, match="disk"):
        in_time(run)


def test_a_failure_of_every_job_at_once_is_one_failure() -> None:
    barrier = threading.Barrier(4)

    def work(job: Job, _: None) -> None:
        barrier.wait(5)
        raise ValueError(job.name)

    runner = Runner(lambda job: None, work, workers=4, memory=100)
    with pytest.raises(ValueError, match="job"):
        in_time(lambda: list(runner.run(jobs(4))))


@pytest.mark.parametrize("seed", range(30))
def test_stopping_at_any_moment_leaves_no_thread(seed: int) -> None:
    """The reader may be reading, waiting for room, or waiting for a worker."""
    chance = random.Random(seed)
    stop_at, fails = chance.randrange(6), chance.random() < 0.5
    pauses = [chance.choice([0, 0, 0.001, 0.003]) for _ in range(40)]

    def load(job: Job) -> None:
        time.sleep(pauses[job.size % 40])

    def work(job: Job, _: None) -> None:
        time.sleep(pauses[(job.size + 7) % 40])
        if fails and job.size % 11 == stop_at:
            raise ValueError("stop")

    runner = Runner(load, work, workers=chance.randrange(1, 5), memory=chance.choice([1, 2, 50]))

    def run() -> None:
        results = runner.run(jobs(40))
        try:
            for _ in range(stop_at + 1):
                next(results)
        except ValueError:
            pass
        results.close()

    in_time(run)


def test_a_reader_that_comes_to_wait_after_the_stop_does_not_wait() -> None:
    """The failed job's memory is never given back, and the stop has woken whoever waited then."""
    readers: list[threading.Thread] = []
    coming, stopped = threading.Event(), threading.Event()

    class Late(threading.Condition):
        def __enter__(self) -> bool:
            if len(readers) == 2 and threading.current_thread() is readers[0]:
                coming.set()
                stopped.wait(5)
            return super().__enter__()

        def __exit__(self, *error: object) -> None:
            super().__exit__(*error)
            if runner._stopped:
                stopped.set()

    def load(job: Job) -> None:
        readers.append(threading.current_thread())

    def work(job: Job, _: None) -> None:
        coming.wait(5)
        raise ValueError("stop")

    three = [Job(name, cost=3 - n, memory=5, size=1) for n, name in enumerate("abc")]
    runner = Runner(load, work, workers=1, memory=10)
    runner._room = Late()
    with pytest.raises(ValueError, match="stop"):
        in_time(lambda: list(runner.run(three)))


def test_an_interrupt_of_the_consumer_stops_the_threads() -> None:
    def report(event: object) -> None:
        raise KeyboardInterrupt

    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt) as caught:  # which keeps the frames alive
        drain(run_jobs(jobs(50), None, lambda j, x: time.sleep(0.001), 2, "cpu"), report)
    assert caught.traceback
    assert threading.active_count() == before


def test_a_thread_that_cannot_start_is_reported_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start
    begun = []

    def limited(thread: threading.Thread) -> None:
        if len(begun) == 2:
            raise RuntimeError("can't start new thread")
        begun.append(thread)
        start(thread)

    runner = Runner(lambda j: None, lambda j, x: None, workers=4, memory=10)
    monkeypatch.setattr(threading.Thread, "start", limited)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        list(runner.run(jobs(10)))


def test_progress_counts_jobs_and_bytes() -> None:
    results: dict[str, int] = {}
    events = list(run_jobs(jobs(7), None, lambda job, _: job.size, 3, "cpu", results))
    total = sum(job.size for job in jobs(7))
    assert [(event.done, event.total) for event in events] == [(n, 7) for n in range(1, 8)]
    assert events[-1].bytes_done == total and {event.bytes_total for event in events} == {total}
    assert results == {job.name: job.size for job in jobs(7)}
