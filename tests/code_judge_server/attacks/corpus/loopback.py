"""Programs that abuse the loopback interface of a jail: others' servers, raw packets, settings, memory of sockets."""

from attacks.attack import ACCEPTED, CRASHED, OUT_OF_MEMORY, TIMED_OUT, Attack

ATTACKS = [
    Attack(
        name="judge_and_listeners_by_every_name",
        code="""
def connect(family, address):
    with socket.socket(family, socket.SOCK_STREAM) as client:
        client.settimeout(1)
        client.connect(address)
        return address
for port in (TARGET["judge_port"], TARGET["tcp_port"]):
    for name in ("127.0.0.1", "127.1.2.3", "0.0.0.0", "255.255.255.255", "172.17.0.1", "10.0.2.2", "192.168.0.1"):
        attempt(f"tcp {name} port {port == TARGET['judge_port']}", connect, socket.AF_INET, (name, port))
    for name in ("::1", "::", "::ffff:127.0.0.1", "fe80::1", "ff02::1"):
        attempt(f"tcp {name} port {port == TARGET['judge_port']}", connect, socket.AF_INET6, (name, port))
""",
        reached_in_tier_d=("tcp 127.0.0.1 port True", "tcp 127.0.0.1 port False"),
    ),
    Attack(
        name="raw_packets",
        code="""
for family in (socket.AF_INET, socket.AF_INET6):
    for protocol in (0, 1, 2, 6, 17, 41, 47, 58, 255):
        attempt(f"raw socket {protocol}", socket.socket, family, socket.SOCK_RAW, protocol)
for protocol in (0x0003, 0x0800):
    for kind in (socket.SOCK_RAW, socket.SOCK_DGRAM):
        attempt(f"packet socket {kind}", socket.socket, socket.AF_PACKET, kind, socket.htons(protocol))
for protocol in (1, 58, 33, 132, 136, 262):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET):
        attempt(f"protocol {protocol}", socket.socket, socket.AF_INET, kind, protocol)
attempt("socket whose family has high bits", syscall, 41 if os.uname().machine == "x86_64" else 198, (1 << 32) | 17, 3, 768)
""",
    ),
    Attack(
        name="settings_of_the_interface",
        code="""
import fcntl
def request(number, data):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        return fcntl.ioctl(any_socket, number, data)
address = struct.pack("16sH2x4s8x", b"lo", socket.AF_INET, bytes((10, 1, 2, 3)))
if TARGET["isolated"]:  # elsewhere these would change the machine
    attempt("interface down", request, 0x8914, struct.pack("16sh22x", b"lo", 0))
    attempt("another address", request, 0x8916, address)
    attempt("another name", request, 0x8923, struct.pack("16s16s", b"lo", b"eth0"))
    attempt("a route", request, 0x890B, bytes(120))
    attempt("a neighbour", request, 0x8955, bytes(68))
    for name in ("ipv4/ip_forward", "ipv4/tcp_rmem", "ipv4/ip_local_port_range", "core/somaxconn"):
        attempt(f"setting {name}", lambda name=name: open(f"/proc/sys/net/{name}", "w").write("1"))
attempt("link settings", socket.socket, socket.AF_NETLINK, socket.SOCK_RAW, 0)
def option(level, name, value):
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as any_socket:
        any_socket.setsockopt(level, name, value)
IP, SOCKET, TCP = socket.IPPROTO_IP, socket.SOL_SOCKET, socket.IPPROTO_TCP
attempt("a filter", option, SOCKET, 26, struct.pack("HxxxxxxQ", 1, 0))
attempt("a mark", option, SOCKET, 36, 1)
attempt("a device", option, SOCKET, 25, b"lo")
def larger_buffers():
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as any_socket:
        any_socket.setsockopt(SOCKET, 33, 1 << 26)
        return found(any_socket.getsockopt(SOCKET, socket.SO_RCVBUF) > 1 << 24)
attempt("larger buffers", larger_buffers)
attempt("transparent", option, IP, 19, 1)
attempt("own headers", option, IP, 3, 1)
attempt("source route", option, IP, 4, b"\\x83\\x07\\x04\\x0a\\x01\\x02\\x03\\x00")
attempt("tables", option, IP, 64, bytes(100))
attempt("another protocol above", option, TCP, 31, b"tls")
attempt("another congestion control", option, TCP, 13, b"dctcp")
""",
        reached_in_tier_d=("link settings",),
    ),
    Attack(
        name="memory_in_connections",
        code="""
server = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
server.bind(("127.0.0.1", 0))
server.listen(1000)
kept = []
for child in range(20):
    if os.fork() == 0:
        break
try:
    while True:
        client = socket.create_connection(server.getsockname())
        client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 26)
        client.setblocking(False)
        kept.append(client)
        try:
            while True:
                client.send(bytes(1 << 20))
        except BlockingIOError:
            pass
except OSError:
    time.sleep(60)
""",
        statuses=OUT_OF_MEMORY | TIMED_OUT | CRASHED,
        limits={"wall_time_s": 5.0},
        says_done=False,
    ),
    Attack(
        name="connections_by_the_thousand",
        code="""
server = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
server.bind(("127.0.0.1", 0))
server.listen(10)
for _ in range(3000):
    with socket.create_connection(server.getsockname()) as client, server.accept()[0] as accepted:
        client.sendall(b"x")
        accepted.recv(1)
""",
        statuses=ACCEPTED | TIMED_OUT | CRASHED,
        limits={"cpu_time_s": 3.0},
        slow=True,
        says_done=False,
    ),
]
