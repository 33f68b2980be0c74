"""The network of a slot: the loopback interface of a namespace of its own, which no other slot and nothing of the machine
shares. There is no other interface in it and no route out.
"""

import fcntl
import socket
import struct

_SIOCSIFFLAGS = 0x8914
_IFF_UP = 0x1
_INTERFACE_REQUEST = "16sh22x"
BUFFER_BYTES_PER_SOCKET = 256 * 1024
"""Bytes that a socket has sent or received and nobody has read: 208 KiB each way for those of UNIX and UDP, unless the
machine has other defaults, and the last message may go beyond; half of this each way for those of TCP.
"""
_TCP_BUFFER_BYTES = BUFFER_BYTES_PER_SOCKET // 2
_SETTINGS = {
    "tcp_rmem": f"4096 65536 {_TCP_BUFFER_BYTES}",
    "tcp_wmem": f"4096 16384 {_TCP_BUFFER_BYTES}",
    # Of what one job did with a port the next one finds nothing: neither connections that are closed but waiting, nor
    # measurements of those that were.
    "tcp_max_tw_buckets": "0",
    "tcp_no_metrics_save": "1",
}


def bring_up() -> None:
    """Bring up the loopback interface of this process's network namespace.

    Raises:
        OSError: the kernel refuses; the interface stays down then.
    """
    for name, value in _SETTINGS.items():
        with open(f"/proc/sys/net/ipv4/{name}", "w") as setting:
            setting.write(value)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack(_INTERFACE_REQUEST, b"lo", _IFF_UP))
