"""The network of a slot: the loopback interface of its own namespace, shared with no other slot and not with the machine. It
has no other interface and no route out.
"""

import fcntl
import socket
import struct

_SIOCSIFFLAGS = 0x8914
_IFF_UP = 0x1
_INTERFACE_REQUEST = "16sh22x"
BUFFER_BYTES_PER_SOCKET = 256 * 1024
"""Most bytes of a socket that were sent or received and not read: 208 KiB each way for UNIX and UDP sockets, unless the machine
has other defaults, and the last message may exceed it; half of this each way for TCP sockets.
"""
_TCP_BUFFER_BYTES = BUFFER_BYTES_PER_SOCKET // 2
_SETTINGS = {
    "tcp_rmem": f"4096 65536 {_TCP_BUFFER_BYTES}",
    "tcp_wmem": f"4096 16384 {_TCP_BUFFER_BYTES}",
    # The next job must find no trace of this job's use of a port: neither closed connections that wait, nor measurements of
    # earlier ones.
    "tcp_max_tw_buckets": "0",
    "tcp_no_metrics_save": "1",
}


def bring_up() -> None:
    """Bring up the loopback interface of this process's network namespace; if the kernel refuses, it stays down."""
    for name, value in _SETTINGS.items():
        with open(f"/proc/sys/net/ipv4/{name}", "w") as setting:
            setting.write(value)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack(_INTERFACE_REQUEST, b"lo", _IFF_UP))
