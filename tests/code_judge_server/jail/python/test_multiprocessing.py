"""`multiprocessing` in every tier: locks, queues, pools and shared values between a program and its forks."""

import pytest
from judge_process import JudgeProcess

PROGRAMS = {
    "pool": """
import multiprocessing
def square(n):
    return n * n
if __name__ == "__main__":
    with multiprocessing.Pool(3) as pool:
        print(sum(pool.map(square, range(100))))
""",
    "executor": """
from concurrent.futures import ProcessPoolExecutor
def square(n):
    return n * n
if __name__ == "__main__":
    with ProcessPoolExecutor(2) as pool:
        print(sum(pool.map(square, range(100))))
""",
    "queue": """
import multiprocessing
def put(queue, n):
    queue.put(n * n)
queue = multiprocessing.Queue()
processes = [multiprocessing.Process(target=put, args=(queue, n)) for n in range(8)]
for process in processes: process.start()
print(sum(queue.get() for _ in processes))
for process in processes: process.join()
""",
    "value": """
import multiprocessing
total, squares = multiprocessing.Value("i", 0), multiprocessing.Array("i", 4)
def add(n):
    for _ in range(500):
        with total.get_lock():
            total.value += 1
    squares[n] = n * n
processes = [multiprocessing.Process(target=add, args=(n,)) for n in range(4)]
for process in processes: process.start()
for process in processes: process.join()
print(total.value, squares[:])
""",
    "shared memory": """
import multiprocessing
from multiprocessing.shared_memory import SharedMemory
memory = SharedMemory(create=True, size=100_000)
def write(name):
    other = SharedMemory(name=name)
    other.buf[:5] = b"hello"
    other.close()
child = multiprocessing.Process(target=write, args=(memory.name,))
child.start()
child.join()
print(bytes(memory.buf[:5]).decode(), memory.size >= 100_000)
memory.close()
memory.unlink()
try:
    SharedMemory(name=memory.name)
except FileNotFoundError:
    print("gone")
""",
    "semantics": """
import multiprocessing, signal, time
lock, recursive, bounded = multiprocessing.Lock(), multiprocessing.RLock(), multiprocessing.BoundedSemaphore(2)
print(lock.acquire(), lock.acquire(False), lock.acquire(timeout=0.05), lock.release(), lock)
with recursive, recursive:
    print(recursive)
for wrong in (lock.release, recursive.release, bounded.release):
    try:
        wrong()
    except (ValueError, AssertionError) as error:
        print(type(error).__name__, error)
print(bounded.acquire(), bounded.get_value(), bounded.acquire(), bounded.acquire(block=False))
event, condition = multiprocessing.Event(), multiprocessing.Condition()
child = multiprocessing.Process(target=lambda: (time.sleep(0.05), event.set()))
child.start()
print(event.wait(10), event.is_set())
child.join()
signal.signal(signal.SIGALRM, lambda *_: print("alarm"))
signal.setitimer(signal.ITIMER_REAL, 0.05)
lock.acquire()
print(lock.acquire(timeout=0.2))
signal.signal(signal.SIGALRM, lambda *_: lock.release())
signal.setitimer(signal.ITIMER_REAL, 0.05)
print(lock.acquire())
nested = multiprocessing.Process(target=lambda: [multiprocessing.Lock() for _ in range(3)][0].acquire())
nested.start()
nested.join()
print(nested.exitcode)
""",
}
PRINTED = {
    "pool": "328350",
    "executor": "328350",
    "queue": "140",
    "value": "2000 [0, 1, 4, 9]",
    "shared memory": "hello True\ngone",
    "semantics": """\
True False False None <Lock(owner=None)>
<RLock(MainProcess, 2)>
ValueError semaphore or lock released too many times
AssertionError attempt to release recursive lock not owned by thread
ValueError semaphore or lock released too many times
True 1 True False
True True
alarm
False
True
0""",
}
SPAWN = """
import multiprocessing
multiprocessing.get_context("spawn").Lock()
"""


@pytest.mark.parametrize("kind", PROGRAMS)
def test_processes_work_together(judge_of_each_tier: JudgeProcess, kind: str) -> None:
    verdict = judge_of_each_tier.judge(code=PROGRAMS[kind], limits={"max_tasks": 64})
    assert (verdict["status"], verdict["stdout"].strip()) == ("accepted", PRINTED[kind]), verdict


def test_a_program_reads_why_tier_c_has_no_semaphores_for_spawn(judge_of_each_tier: JudgeProcess) -> None:
    verdict = judge_of_each_tier.judge(code=SPAWN)
    if judge_of_each_tier.http.get("/v1/health").json()["isolation"] == "C":
        assert "only the start method `fork` has semaphores here" in verdict["stderr"], verdict
    else:
        assert verdict["status"] == "accepted", verdict
