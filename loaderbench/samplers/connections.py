"""Bytes that a process received over its TCP connections, and from whom. Those that came by recv(2), as Python's
sockets read, are not among the bytes of read calls (`rchar` of proc(5)).

The kernel counts for each connection (`tcpi_bytes_received` of TCP_INFO, tcp(7), since Linux 4.1). All files of the
process are asked, so that connections of libraries in C count too. What one that is opened and closed between two
counts received is known where Python's `socket` closes it (`closed_ones_counted`). Missed are those that C code opens
and closes between two counts, and what comes over UDP or local sockets.

Cost (2 shared processors): 8 µs a connection and count; a look for new ones 60 µs with 13 files open.
"""

from __future__ import annotations

import ctypes
import ipaddress
import socket
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from loaderbench.originals import os, time

LOOK_S = 0.01
"""Between two looks for new connections: they take 1 % of the time at most."""
FROM_PEERS = 0.5
"""Of what was asked for, that must come over connections for their peers to be the storage."""
SO_COOKIE = 57
"""asm-generic/socket.h: a number that no other socket has while the machine runs."""
RECEIVED_AT, INFO_BYTES = 128, 136
"""Where `tcpi_bytes_received` stands in tcp_info (include/uapi/linux/tcp.h), and its end."""
ENDED = (6, 8, 9, 11)
"""States (tcp_states.h: TIME_WAIT, CLOSE_WAIT, LAST_ACK, CLOSING) in which the peer has sent its end, which the kernel
counts as a byte."""
AF_INET, AF_INET6, TCP, TCP_INFO, SOL_SOCKET = (
    socket.AF_INET, socket.AF_INET6, socket.IPPROTO_TCP, socket.TCP_INFO, socket.SOL_SOCKET,
)  # fmt: skip
MAPPED = b"\0" * 10 + b"\xff\xff"
"""In front of an IPv4 address in one of IPv6 (RFC 4291, 2.5.5.2)."""
_c: Any = ctypes.PyDLL(None)
"""Keeps the interpreter's lock: no call here waits for anything."""

Address = tuple[bytes, int]
"""Of a peer: 16 bytes, and the port."""


def name_of(address: Address) -> str:
    """`127.0.0.1:8000`, `[::1]:8000`"""
    host = ipaddress.IPv6Address(address[0])
    return f"[{host}]:{address[1]}" if host.ipv4_mapped is None else f"{host.ipv4_mapped}:{address[1]}"


def stores_of(by_peer: Mapping[Address, int], asked_bytes: int) -> list[str]:
    """The peers of a process that asked for so many bytes, the one that sent most first; none where most of them came
    from files."""
    if not by_peer or sum(by_peer.values()) < FROM_PEERS * asked_bytes:
        return []
    return [name_of(address) for address, _ in sorted(by_peer.items(), key=lambda item: -item[1])]


class Connections:
    """Of the calling process, from now on."""

    def __init__(self, inherited: Connections | None = None) -> None:
        """`inherited`: of the process that this one was forked from, at that time. Its connections are left out: what
        they receive is mostly not for this process."""
        self._foreign: set[int] = set()
        if inherited is not None:
            self._foreign = {*inherited._foreign, *inherited._open.values()}
        self._open: dict[int, int] = {}
        """Number of its file → cookie."""
        self._counted: dict[int, int] = {}
        """Cookie → bytes."""
        self.received = 0
        self.by_peer: dict[Address, int] = {}
        self._looked_s = 0.0
        self.look()
        self.received, self.by_peer = 0, {}

    def count(self) -> int:
        """Bytes received so far. New connections are looked for where the last look was LOOK_S ago."""
        if time.monotonic() - self._looked_s >= LOOK_S:
            self.look()
        else:
            for number in [*self._open]:
                self._count(number)
        return self.received

    def look(self) -> None:
        """Count all connections."""
        self._looked_s = time.monotonic()
        try:
            numbers = [int(name) for name in os.listdir("/proc/self/fd")]
        except OSError:  # no file more may be opened: the known ones are counted the next time
            return
        self._open = {}
        for number in numbers:
            self._count(number)
        still = {*self._open.values()}
        self._counted = {cookie: num for cookie, num in [*self._counted.items()] if cookie in still}

    def closing(self, number: int) -> None:
        """Count a connection for the last time."""
        self._count(number)
        self._open.pop(number, None)

    def _count(self, number: int) -> None:
        info = _asked(number, TCP, TCP_INFO)
        if len(info) < INFO_BYTES:
            self._open.pop(number, None)
            return
        (cookie,), num = struct.unpack("Q", _asked(number, SOL_SOCKET, SO_COOKIE)), _received(info)
        self._open[number] = cookie
        more = num - self._counted.get(cookie, 0)
        self._counted[cookie] = num
        if more <= 0 or cookie in self._foreign:
            return
        self.received += more
        address = _peer_of(number)
        if address is not None:
            self.by_peer[address] = self.by_peer.get(address, 0) + more


def _received(info: bytes) -> int:
    (num,) = struct.unpack_from("Q", info, RECEIVED_AT)
    return int(num) - (info[0] in ENDED)


def _asked(number: int, level: int, name: int) -> bytes:
    """Of getsockopt(2); empty where the file is no such socket."""
    value, length = ctypes.create_string_buffer(256), ctypes.c_uint32(256)
    failed = _c.getsockopt(number, level, name, value, ctypes.byref(length))
    return b"" if failed else value.raw[: length.value]


def _peer_of(number: int) -> Address | None:
    """None for one that the other side has reset."""
    value, length = ctypes.create_string_buffer(128), ctypes.c_uint32(128)
    if _c.getpeername(number, value, ctypes.byref(length)):
        return None
    family, port = struct.unpack_from("=H", value)[0], struct.unpack_from(">H", value, 2)[0]
    if family == AF_INET:
        return MAPPED + value.raw[4:8], port
    return (value.raw[8:24], port) if family == AF_INET6 else None


class _OfProcess:
    connections: Connections | None = None
    pid = 0


def connections() -> Connections:
    """Of this process, from the first call on. A forked process that calls this inherits nothing but which connections
    its parent knew."""
    found, pid = _OfProcess.connections, os.getpid()
    if found is None or _OfProcess.pid != pid:
        found = _OfProcess.connections = Connections(found)
        _OfProcess.pid = pid
    return found


@contextmanager
def closed_ones_counted() -> Iterator[None]:
    """For the block's time Python's sockets are counted once more where they are closed, in this process and in forked
    ones that count."""
    owner: Any = socket.socket
    close = owner._real_close

    def counted(one: Any, *arguments: Any) -> Any:
        if _OfProcess.connections is not None and _OfProcess.pid == os.getpid():
            _OfProcess.connections.closing(one.fileno())
        return close(one, *arguments)

    owner._real_close = counted
    try:
        yield
    finally:
        owner._real_close = close
