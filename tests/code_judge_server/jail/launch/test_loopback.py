"""Servers that a program starts for itself, on the loopback interface of its own jail."""

import os

import pytest
from jail_tiers import in_tiers_that_isolate
from judge_process import JudgeProcess

pytestmark = in_tiers_that_isolate

SERVERS = {
    "asyncio": """
import asyncio
async def main():
    async def answer(reader, writer):
        writer.write((await reader.readline()).upper())
        await writer.drain()
        writer.close()
    async with await asyncio.start_server(answer, "127.0.0.1", 8765):
        reader, writer = await asyncio.open_connection("localhost", 8765)
        writer.write(b"hello\\n")
        print((await reader.read()).decode())
        writer.close()
        await writer.wait_closed()
asyncio.run(main())
""",
    "http.server": """
import http.server, threading, urllib.request
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"HELLO")
    def log_message(self, *arguments):
        pass
server = http.server.ThreadingHTTPServer(("localhost", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/").read().decode())
server.shutdown()
""",
    "udp over IPv6": """
import socket
with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as server, socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as client:
    server.bind(("::1", 0))
    client.sendto(b"HELLO", server.getsockname())
    print(server.recv(10).decode())
""",
    "forkserver": """
import multiprocessing
def work(text):
    return text.upper()
if __name__ == "__main__":
    with multiprocessing.get_context("forkserver").Pool(2) as pool:
        print(pool.map(work, ["hello"])[0])
""",
}
PORT = 20_000 + os.getpid() % 10_000
LISTEN = f"""
import socket, sys, time
server = socket.socket()
server.bind(("127.0.0.1", {PORT}))  # without SO_REUSEADDR
server.listen()
server.settimeout(1.0)
client = socket.create_connection(server.getsockname())
accepted, _ = server.accept()
accepted.close()  # before the other end, so that this one would have to wait
client.recv(1)
client.close()
try:
    server.accept()
except TimeoutError:
    print("nobody else")
"""
CONNECT = f"""
import socket, time
for _ in range(20):
    try:
        socket.create_connection(("127.0.0.1", {PORT}), timeout=1)
    except ConnectionRefusedError:
        time.sleep(0.05)
    else:
        print("another program's server")
        break
else:
    print("refused")
"""


def has_network(judge: JudgeProcess) -> bool:
    return judge.http.get("/v1/health").json()["isolation"] in ("A", "B")


@pytest.mark.parametrize("kind", SERVERS)
def test_a_program_may_speak_to_its_own_server(judge_of_each_tier: JudgeProcess, kind: str) -> None:
    verdict = judge_of_each_tier.judge(code=SERVERS[kind])
    if has_network(judge_of_each_tier):
        assert (verdict["status"], verdict["stdout"].strip()) == ("accepted", "HELLO"), verdict
    else:
        assert verdict["status"] == "runtime_error", verdict


def test_programs_do_not_meet(judge_of_each_tier: JudgeProcess) -> None:
    if not has_network(judge_of_each_tier):
        pytest.skip("tier C has no network")
    submissions = [{"id": "listen", "code": LISTEN}, {"id": "connect", "code": CONNECT}]
    listening, connecting = judge_of_each_tier.judge_batch(submissions)
    assert (listening["stdout"], connecting["stdout"]) == ("nobody else\n", "refused\n"), (listening, connecting)


def test_a_port_is_free_for_the_next_program(judge_of_each_tier: JudgeProcess) -> None:
    if not has_network(judge_of_each_tier):
        pytest.skip("tier C has no network")
    quick = LISTEN.replace("settimeout(1.0)", "settimeout(0.02)")
    verdicts = [judge_of_each_tier.judge(code=quick) for _ in range(4)]  # in each of two slots more than once
    assert [verdict["stdout"] for verdict in verdicts] == ["nobody else\n"] * 4, verdicts
