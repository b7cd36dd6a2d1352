"""Checks in seconds that a SuperLink answers and has a valid certificate. Flower's own commands would retry for ever."""

from __future__ import annotations

import http.client
import socket
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fedskew.core.errors import FedskewError, require

SECONDS = 5.0
"""How long a SuperLink may take for each answer."""

OWN_ADDRESS = ("IP Address", "127.0.0.1")
"""What a SuperLink's own processes call when it listens on all addresses."""


class Trust(NamedTuple):
    """The connections that a node accepts: without TLS, or with a certificate of these authorities (None: the system's)."""

    insecure: bool
    roots: Path | None = None

    @classmethod
    def of_options(cls, options: Sequence[str]) -> Trust:
        """Read the options of flower-supernode."""
        words = [part for option in options for part in option.split("=", 1)]
        at = words.index("--root-certificates") + 1 if "--root-certificates" in words else len(words)
        return cls("--insecure" in words, Path(words[at]) if at < len(words) else None)

    def context(self) -> ssl.SSLContext:
        """Raises `BadInput` for a file that holds no certificate."""
        try:
            return ssl.create_default_context(cafile=self.roots)
        except OSError as error:  # an ssl.SSLError is one
            require(False, f"--root-certificates {self.roots}: holds no certificate in PEM form: {reason(error)}")
            raise


def check_superlink(address: str, trust: Trust) -> str:
    """Raise `FedskewError` with the reason and the fix if no SuperLink answers at HOST:PORT; `BadInput` for another address.

    Returns a warning if the SuperLink cannot start runs: its own processes call an address that its certificate does not have.
    """
    host, _, port = address.rpartition(":")
    require(bool(host) and port.isdecimal() and int(port) < 1 << 16, f"superlink {address!r}: write HOST:PORT")
    host = host.strip("[]")
    link: http.client.HTTPConnection
    if trust.insecure:
        link = http.client.HTTPConnection(host, int(port), timeout=SECONDS)
    else:
        link = http.client.HTTPSConnection(host, int(port), timeout=SECONDS, context=trust.context())
    try:
        link.connect()
        certificate = link.sock.getpeercert() if isinstance(link.sock, ssl.SSLSocket) else None
        link.request("GET", "/")
        link.getresponse()
    except (OSError, http.client.HTTPException) as error:
        raise FedskewError(f"superlink {address}: {explained(error, port, trust)}") from None
    finally:
        link.close()
    if certificate is None or OWN_ADDRESS in certificate.get("subjectAltName", ()):
        return ""
    return (
        f"superlink {address}: its certificate does not name 127.0.0.1, which its own processes call unless it has --host {host}, "
        f"so no run will start; make it with subjectAltName=DNS:{host},IP:127.0.0.1"
    )


def explained(error: Exception, port: str, trust: Trust) -> str:
    """Return a text: why there is no answer, and what to do."""
    if isinstance(error, ssl.SSLCertVerificationError):
        authorities = f"--root-certificates {trust.roots}" if trust.roots else "the system's authorities"
        return f"certificate verify failed: {error.verify_message}; checked against {authorities}"
    if isinstance(error, ssl.SSLError):
        return f"it does not speak TLS ({reason(error)}); start it with --ssl-certfile, or give --insecure"
    if isinstance(error, socket.gaierror):
        return "this host name has no address; check its spelling, or give the IP address"
    if isinstance(error, ConnectionRefusedError):
        return f"nothing listens there; start flower-superlink with --port {port} first"
    if isinstance(error, TimeoutError):
        return f"no answer in {SECONDS:g} s; check the address, the port and the firewall"
    if trust.insecure and isinstance(error, ConnectionError | http.client.HTTPException):
        return "it does not answer without TLS; give --root-certificates instead of --insecure"
    return reason(error)


def reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
