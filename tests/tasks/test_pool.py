"""Grading in processes: what hangs or crashes costs one completion, and is told."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from mergekit_rl.errors import EditError
from mergekit_rl.tasks import GraderPool

PLUGIN = """
import ctypes, os, subprocess, sys, time
from mergekit_rl.tasks import Grade, grader

@grader
def odd(text, row):
    if text == "hang":
        while True:
            pass
    if text == "child":
        with open(row["answer"], "w") as file:
            file.write(str(subprocess.Popen(["sleep", "30"]).pid))
        time.sleep(1000)
    if text == "sleep":
        time.sleep(1000)
    if text == "exit":
        os._exit(3)
    if text == "segfault":
        ctypes.string_at(0)
    if text == "raise":
        raise ZeroDivisionError("by nothing")
    if text == "leave":
        sys.exit(0)
    if text == "memory":
        bytearray(8 * 2**30)
    if text == "nothing":
        return None
    if text == "print":
        print("x" * 10**6)
    if text == "modules":
        return Grade(1.0, True, True, str(sorted({"torch", "transformers"} & set(sys.modules))))
    if text == "main":
        return Grade(1.0, True, True, str(hasattr(sys.modules["__main__"], "__file__")))
    if text == "pid":
        return Grade(1.0, True, True, str(os.getpid()))
    return Grade(1.0, True, True, str(len(text)) if len(text) > 99 else text)
"""
ODD = {"id": "odd-1", "answer": "", "meta": {"grader": "odd"}}


@pytest.fixture(scope="module")
def plugin(tmp_path_factory):
    path = tmp_path_factory.mktemp("plugin") / "odd.py"
    path.write_text(PLUGIN)
    return path


@pytest.fixture(scope="module")
def pool(plugin):
    with GraderPool(2, 1.0, plugins=[plugin], memory=2 * 2**30) as pool:
        yield pool


def whys(pool, *texts):
    return [one.why for one in pool.grade(texts, [ODD] * len(texts))]


def test_grades_come_in_the_order_of_the_texts(pool):
    texts = [str(number) for number in range(300)]
    assert whys(pool, *texts) == texts
    assert pool.grade([], []) == []


def test_worker_has_not_loaded_torch_where_its_parent_has(pool):
    assert "torch" in sys.modules
    assert whys(pool, "modules", "main") == ["[]", "False"]


@pytest.mark.parametrize("how", ["hang", "sleep"])
def test_hanging_grader_costs_one_completion_and_is_counted(pool, caplog, how):
    before, started = pool.counts["timed out"], time.monotonic()
    grades = pool.grade(["a", how, "b", "c"], [ODD] * 4)
    assert time.monotonic() - started < 20
    assert [one.reward for one in grades] == [1.0, None, 1.0, 1.0]
    assert grades[1].why == "grader timed out after 1 s" and not grades[1].correct
    assert pool.counts["timed out"] == before + 1
    assert "odd-1: grader timed out after 1 s; no reward is given" in caplog.text


@pytest.mark.parametrize(
    ("how", "count", "why"),
    [
        ("exit", "crashed", "grader crashed: exit code 3"),
        ("segfault", "crashed", "grader crashed: SIGSEGV"),
        ("raise", "failed", "grader failed: ZeroDivisionError: by nothing"),
        ("leave", "failed", "grader failed: SystemExit: 0"),
        ("memory", "failed", "grader failed: MemoryError: "),
        ("nothing", "failed", "grader failed: it returned NoneType, expected a Grade"),
    ],
)
def test_crash_or_exception_is_no_silent_zero(pool, how, count, why):
    before = pool.counts[count]
    grades = pool.grade(["a", how, "b"], [ODD] * 3)
    assert [one.reward for one in grades] == [1.0, None, 1.0]
    assert grades[1].why == why
    assert pool.counts[count] == before + 1


def test_what_a_grader_prints_is_kept_from_standard_output(plugin, capfd):
    with GraderPool(1, plugins=[plugin]) as pool:
        assert whys(pool, "print", "a") == ["print", "a"]
    said = capfd.readouterr()
    assert said.out == "" and "xxx" in said.err


def test_what_a_hanging_grader_started_is_ended_with_it(tmp_path, plugin):
    with GraderPool(1, 1.0, plugins=[plugin]) as pool:
        row = {"answer": str(tmp_path / "pid"), "meta": {"grader": "odd"}}
        assert pool.grade(["child"], [row])[0].reward is None
    wait_until(lambda: not running(int((tmp_path / "pid").read_text())))


def test_every_worker_may_crash_at_once(pool):
    assert whys(pool, *["exit"] * 6, "a") == ["grader crashed: exit code 3"] * 6 + ["a"]


def test_worker_that_ended_between_two_batches_costs_nothing(plugin):
    with GraderPool(1, plugins=[plugin]) as pool:
        (pid,) = whys(pool, "pid")
        os.kill(int(pid), signal.SIGKILL)
        time.sleep(0.2)
        assert whys(pool, "a", "b") == ["a", "b"]


def test_long_completion_is_cut_to_its_end(plugin):
    with GraderPool(1, plugins=[plugin], most_characters=1000) as pool:
        assert whys(pool, "x" * 10**7) == ["1000"]
        texts = ["x" * 10**6 + "\nAnswer: 5", "<think>" + "x" * 10**6 + "\nAnswer: 5"]
        found = pool.grade(texts, [{"answer": 5}] * 2)
        assert [one.reward for one in found] == [1.0, 0.0]


def test_interrupt_leaves_the_pool_usable_and_no_process_at_work(plugin):
    with GraderPool(2, 60, plugins=[plugin]) as pool:
        pids = set(whys(pool, *["pid"] * 20))
        main = threading.main_thread().ident
        threading.Timer(0.5, signal.pthread_kill, (main, signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            pool.grade(["hang", "hang", "a"], [ODD] * 3)
        assert not any(running(int(pid)) for pid in pids)
        assert whys(pool, "a", "b") == ["a", "b"]


def test_processes_end_with_the_pool_and_with_their_parent(plugin):
    with GraderPool(1, plugins=[plugin]) as pool:
        (pid,) = whys(pool, "pid")
        assert running(int(pid))
    assert not running(int(pid))
    with pytest.raises(ValueError, match="closed"):
        whys(pool, "a")
    script = (
        "import os\nfrom mergekit_rl.tasks import GraderPool\n"
        f"pool = GraderPool(1, plugins=[{str(plugin)!r}])\n"
        "print('ran', pool.grade(['pid'], [{'answer': '', 'meta': {'grader': 'odd'}}])[0].why)\n"
        "os.sys.stdout.flush()\nos._exit(0)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    word, pid = done.stdout.split()
    assert word == "ran", done.stderr
    wait_until(lambda: not running(int(pid)))


def test_script_without_a_main_guard_is_not_run_by_the_workers(tmp_path):
    script = tmp_path / "grading.py"
    script.write_text(
        "print('ran')\nfrom mergekit_rl.tasks import GraderPool\n"
        "with GraderPool(2) as pool:\n"
        "    print(pool.grade(['Answer: 5'], [{'answer': 5}])[0].why)\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert done.stdout.split() == ["ran", "right"], done.stderr


def test_pool_is_ready_soon():
    best = min(_start_up() for _ in range(3))
    assert best < 1.5


def _start_up():
    started = time.monotonic()
    with GraderPool(1) as pool:
        pool.grade(["Answer: 5"], [{"answer": 5}])
    return time.monotonic() - started


def test_what_the_user_can_fix_is_an_edit_error(tmp_path, plugin):
    with GraderPool(1) as pool:
        with pytest.raises(EditError, match="there is no grader 'intger'; did you mean 'integer'"):
            pool.grade(["5"], [{"answer": 5, "meta": {"grader": "intger"}}])
        assert pool.grade(["Answer: 5"], [{"answer": 5}])[0].strict
        with pytest.raises(ValueError, match="1 texts and 0 rows"):
            pool.grade(["5"], [])
    broken = tmp_path / "broken.py"
    broken.write_text("import nothing_of_that_name\n")
    with GraderPool(1, plugins=[broken]) as pool, pytest.raises(EditError) as error:
        pool.grade(["5"], [{"answer": 5}])
    assert str(error.value) == (
        f"the graders in {broken} cannot be loaded: "
        "ModuleNotFoundError: No module named 'nothing_of_that_name'"
    )
    with pytest.raises(EditError, match=r"--plugin none\.py is no Python file here"):
        GraderPool(1, plugins=["none.py"])
    with pytest.raises(EditError, match="expected 1 or more workers"):
        GraderPool(0)


def test_worker_that_cannot_start_is_told_and_not_tried_for_ever(tmp_path):
    dying = tmp_path / "dying.py"
    dying.write_text("import os\nos._exit(1)\n")
    with GraderPool(1, plugins=[dying]) as pool, pytest.raises(EditError, match="do not start"):
        pool.grade(["5"], [{"answer": 5}])


def running(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:  # noqa: PTH123
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(true, seconds=10):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)
