"""By which address other processes of the job reach this one.

jax's CPU collectives leave it to gloo, which takes what the machine's own name resolves to: on many machines that is
127.0.0.1 or 127.0.1.1, which other machines cannot connect to.
"""

from __future__ import annotations

import ipaddress
import socket

#: Reserved for documentation: the way there is the way to everywhere that has no route of its own.
_ELSEWHERE = "192.0.2.1"


def local_address_for(meeting_place: str) -> str:
    """This machine's address on the network where ``meeting_place``, a name or an address of rank 0, is.

    A name that is a loopback address here (Debian's /etc/hosts has the own name so) is another one elsewhere: then it
    is the address of the default route. Raises OSError where the name is unknown or nowhere.
    """
    address = _source_address_for(meeting_place)
    if not _loopback(address) or meeting_place == "localhost" or _loopback(meeting_place):
        return address
    try:
        return _source_address_for(_ELSEWHERE)
    except OSError:  # a machine without a network: the job is on this one alone
        return address


def loopback_for(meeting_place: str, all_here: bool) -> str | None:
    """The loopback address where a job meets; None where it meets on a network.

    ``all_here``: no process of the job is on another machine, so that the own name may stand for a loopback address.
    """
    address = _source_address_for(meeting_place) if all_here else local_address_for(meeting_place)
    return address if _loopback(address) else None


def _source_address_for(place: str) -> str:
    family, kind, protocol, _, address = socket.getaddrinfo(place, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)  # of a datagram socket: looks up the route, and sends nothing
        return str(probe.getsockname()[0])


def _loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False  # a name
