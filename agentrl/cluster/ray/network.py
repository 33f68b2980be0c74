"""Address and network interface by which the other processes of a run reach this one."""

import contextlib
import fcntl
import os
import socket
import struct

import ray

_INTERFACE_SETTINGS = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
"""Interface variables of the collectives. Their default is what the host name resolves to, often a loopback address."""
_SIOCGIFADDR = 0x8915
"""Linux: the IPv4 address of an interface (`netdevice(7)`)."""


def own_address() -> str:
    """Return the address by which the other Ray nodes know this one."""
    node_id = own_node_id()
    return next(node["NodeManagerAddress"] for node in ray.nodes() if node["NodeID"] == node_id)


def own_node_id() -> str:
    """Return the id of this Ray node."""
    return ray.get_runtime_context().get_node_id()


def use_interface_of(address: str) -> None:
    """Make the collectives of this process use the interface of `address`, unless its environment names one."""
    interface = next((name for _, name in socket.if_nameindex() if _address_of(name) == address), None)
    if interface is not None:
        for setting in _INTERFACE_SETTINGS:
            os.environ.setdefault(setting, interface)


def _address_of(interface: str) -> str | None:
    request = struct.pack("256s", interface.encode())
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagram, contextlib.suppress(OSError):
        return socket.inet_ntoa(fcntl.ioctl(datagram.fileno(), _SIOCGIFADDR, request)[20:24])
    return None
