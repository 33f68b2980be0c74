"""Programs that try to reach listeners over every family of sockets; each address has a listener."""

from attacks.attack import Attack

ATTACKS = [
    Attack(
        name="tcp",
        code="""
def connect(family, address):
    with socket.socket(family, socket.SOCK_STREAM) as client:
        client.settimeout(1)
        client.connect(address)
        return address
attempt("listener", connect, socket.AF_INET, ("127.0.0.1", TARGET["tcp_port"]))
attempt("listener on ::1", connect, socket.AF_INET6, ("::1", TARGET["tcp_port"]))
attempt("the judge itself", connect, socket.AF_INET, ("127.0.0.1", TARGET["judge_port"]))
for address in ("0.0.0.0", "169.254.169.254", "10.0.0.1", "192.0.2.1"):
    attempt(f"connect to {address}", connect, socket.AF_INET, (address, TARGET["tcp_port"]))
""",
        reached_in_tier_d=("listener", "the judge itself"),
    ),
    Attack(
        name="udp",
        code="""
def send(family, address):
    with socket.socket(family, socket.SOCK_DGRAM) as client:
        client.connect(address)
        for _ in range(2):  # that nobody listens is told by the second
            sent = client.send(b"from the jail")
            time.sleep(0.05)
        return sent
attempt("datagram", send, socket.AF_INET, ("127.0.0.1", TARGET["tcp_port"]))
attempt("datagram over ::1", send, socket.AF_INET6, ("::1", TARGET["tcp_port"]))
attempt("datagram to a name server", send, socket.AF_INET, ("192.0.2.1", 53))
attempt("broadcast", send, socket.AF_INET, ("255.255.255.255", 9))
""",
        reached_in_tier_d=("datagram",),
    ),
    Attack(
        name="families",
        code="""
HARMLESS = {socket.AF_UNIX, socket.AF_INET, socket.AF_INET6}  # these are judged by what they reach
for family in range(50):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET):
        if family in HARMLESS and kind != socket.SOCK_RAW or family == socket.AF_UNIX:
            continue  # a raw unix socket is a datagram one
        try:
            socket.socket(family, kind).close()
        except OSError:
            continue
        say(f"reached: socket of family {family}, kind {kind}")
""",
        reached_in_tier_d=("socket of family 16, kind 3",),
    ),
    Attack(
        name="unix_sockets",
        code="""
def connect(kind, address):
    with socket.socket(socket.AF_UNIX, kind) as client:
        client.connect(address)
        return client.send(b"from the jail")
attempt("abstract stream", connect, socket.SOCK_STREAM, "\\0" + TARGET["abstract_name"])
for name in ("/tmp/.X11-unix/X0", "/tmp/dbus", "/org/freedesktop/systemd1/notify", "cloud-init"):
    attempt(f"abstract {name}", connect, socket.SOCK_STREAM, "\\0" + name)
attempt("abstract datagram", connect, socket.SOCK_DGRAM, "\\0" + TARGET["abstract_name"] + "-datagram")
attempt("socket in the file system", connect, socket.SOCK_STREAM, TARGET["unix_path"])
attempt("socket behind init's root", connect, socket.SOCK_STREAM, "/proc/1/root" + TARGET["unix_path"])
def listed():
    with open("/proc/net/unix") as table:
        return found([line for line in table if "@" + TARGET["abstract_name"] in line])
attempt("list of sockets", listed)
""",
        reached_in_tier_d=("abstract stream", "abstract datagram", "socket in the file system", "list of sockets"),
    ),
    Attack(
        name="connections_of_the_machine",
        code="""
for table in ("tcp", "tcp6", "udp", "arp", "route", "fib_trie"):
    def entries():
        with open(f"/proc/net/{table}") as file:
            return found(file.read().splitlines()[1:])
    if table in ("tcp", "route"):
        attempt(f"table {table}", entries)
OWN = ("lo", "tunl0", "sit0")  # in every network namespace
attempt("names of interfaces", lambda: found([name for _, name in socket.if_nameindex() if name not in OWN]))
""",
        reached_in_tier_d=("table tcp",),
    ),
    Attack(
        name="fast_open_and_sendto",
        code="""
def fast_open():
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as client:
        return client.sendto(b"from the jail", 0x20000000, ("127.0.0.1", TARGET["tcp_port"]))
attempt("tcp fast open", fast_open)
def multipath():
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262) as client:
        client.settimeout(1)
        return client.connect(("127.0.0.1", TARGET["tcp_port"]))
attempt("multipath tcp", multipath)
def sctp():
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, 132) as client:
        return client.connect(("127.0.0.1", TARGET["tcp_port"]))
attempt("sctp", sctp)
def ping():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM, 1) as client:
        return client.sendto(bytes([8, 0, 247, 255, 0, 0, 0, 0]), ("127.0.0.1", 0))
attempt("ping", ping)
""",
        reached_in_tier_d=("tcp fast open",),
    ),
]
