"""Find the address at which other processes of the job reach this one.

jax's CPU collectives leave the choice to gloo, which uses the address that the host name resolves to: on many machines
127.0.0.1 or 127.0.1.1, which other machines cannot connect to.
"""

from __future__ import annotations

import ipaddress
import socket

#: Reserved for documentation: its route is the default route.
_ELSEWHERE = "192.0.2.1"


def local_address_for(meeting_place: str) -> str:
    """Return this machine's address on the network of ``meeting_place``, the host name or address of rank 0.

    A name that resolves to loopback here (Debian's /etc/hosts contains the host's name) has another address elsewhere:
    then the address of the default route is returned. Raises OSError if the name is unknown or unreachable.
    """
    address = _source_address_for(meeting_place)
    if not _loopback(address) or meeting_place == "localhost" or _loopback(meeting_place):
        return address
    try:
        return _source_address_for(_ELSEWHERE)
    except OSError:  # no network: the job runs on this machine only
        return address


def loopback_for(meeting_place: str, all_here: bool) -> str | None:
    """Return the loopback address of a job on one machine; None if the job uses a network.

    ``all_here``: all processes are on this machine, so the host name may resolve to a loopback address.
    """
    address = _source_address_for(meeting_place) if all_here else local_address_for(meeting_place)
    return address if _loopback(address) else None


def _source_address_for(place: str) -> str:
    family, kind, protocol, _, address = socket.getaddrinfo(place, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)  # on a datagram socket: looks up the route without sending
        return str(probe.getsockname()[0])


def _loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False  # a name
