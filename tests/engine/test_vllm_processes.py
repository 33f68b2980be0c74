"""What becomes of an engine whose processes end, without vLLM: any processes will do."""

import asyncio
import multiprocessing
import os
import time
from multiprocessing.process import BaseProcess

from agentrl.engine.vllm_processes import VllmProcesses


def start_sleeper() -> BaseProcess:
    process = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(600,), daemon=True)
    process.start()
    return process


async def make_processes() -> VllmProcesses:
    return VllmProcesses()


async def test_the_first_process_to_end_takes_the_engine_down_and_others_do_not_matter() -> None:
    stranger = start_sleeper()
    processes = VllmProcesses()
    first, second = start_sleeper(), start_sleeper()
    try:
        assert processes.watch() == sorted(child.pid or 0 for child in (first, second))
        stranger.kill()
        await asyncio.to_thread(stranger.join)
        assert not processes.down.done()
        second.kill()
        async with asyncio.timeout(60):
            await processes.down
        first.kill()
        await asyncio.to_thread(first.join)
        processes.note_down()  # a second time, it changes nothing
    finally:
        for process in (stranger, first, second):
            process.kill()


def test_what_is_left_of_the_sockets_is_removed() -> None:
    processes = asyncio.run(make_processes())
    left = os.path.join(processes.socket_folder, "socket")
    os.mknod(left)
    processes.remove_sockets()
    assert not os.path.exists(processes.socket_folder)
    processes.remove_sockets()
