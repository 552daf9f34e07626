"""By which address other machines reach a server that listens at all of this one's."""

import socket

_ANYWHERE = {"0.0.0.0": (socket.AF_INET, "192.0.2.1"), "::": (socket.AF_INET6, "2001:db8::1")}
"""For each such address an address of documentation, the way to which begins at the one that is wanted."""


def url_for_others(address: str, port: int) -> str:
    """The URL for other machines of this network; empty: this machine alone reaches it, or its own URL is that.

    Args:
        address: where the server listens.
        port: its port.
    """
    if address not in _ANYWHERE:
        return ""
    family, far = _ANYWHERE[address]
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((far, 9))  # nothing is sent
            own = probe.getsockname()[0]
    except OSError:
        return ""
    return f"http://[{own}]:{port}" if family == socket.AF_INET6 else f"http://{own}:{port}"
