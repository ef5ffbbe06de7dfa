"""Access control of the review page: requests need the token, the page's own Origin and the Host it is served under.

A web page can make a browser send requests to 127.0.0.1, or point its own name there (DNS rebinding).
The first lacks the token and has a foreign Origin, the second a foreign Host.
"""

from __future__ import annotations

import ipaddress
import secrets
import socket
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER = "x-fewtags-token"
READING = ("GET", "HEAD")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "x-frame-options": "DENY",
}


@dataclass(frozen=True)
class Address:
    """Where the page is served."""

    host: str
    port: int

    @property
    def loopback(self) -> bool:
        return self.host == "localhost" or (_is_ip(self.host) and ipaddress.ip_address(self.host).is_loopback)

    @property
    def origin(self) -> str:
        """The URL to print, for a browser on this machine."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return f"http://{_bracketed(host)}:{self.port}"

    def answers_to(self, host_header: str) -> bool:
        """Is this Host header one of ours? If we listen on all addresses, any IP address is: rebinding needs a name."""
        name, _, port = host_header.rpartition(":")
        if self.port == 80 and not port.isdigit():  # browsers omit the default port
            name, port = host_header, "80"
        if not name or port != str(self.port):
            return False
        name = name.strip("[]").lower()
        if self.loopback:
            return name in ("127.0.0.1", "localhost", "::1", self.host)
        return name in ("localhost", self.host.lower(), socket.gethostname().lower()) or _is_ip(name)


class Guard:
    """Middleware around the whole application, including static files."""

    def __init__(self, app: ASGIApp, *, address: Address, token: str, read_only: bool):
        self.app, self.address, self.token, self.read_only = app, address, token, read_only
        self.cookie = f"fewtags-review-{address.port}"  # cookies are shared between ports

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            refused = self._refusal(scope)
            await (refused or self.app)(scope, receive, self._with_headers(scope, send))

    def _refusal(self, scope: Scope) -> ASGIApp | None:
        headers = Headers(scope=scope)
        host, origin, reading = headers.get("host", ""), headers.get("origin"), scope["method"] in READING
        if len(headers.getlist("host")) != 1 or not self.address.answers_to(host):
            return PlainTextResponse("This page is not served under that name.", 421)
        if origin is not None and origin != f"http://{host}":
            return PlainTextResponse("Requests from other pages are rejected.", 403)
        foreign = headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none")
        followed_link = reading and headers.get("sec-fetch-dest") == "document"
        if foreign and not followed_link:
            return PlainTextResponse("Requests from other pages are rejected.", 403)
        by_header = self._matches(headers.get(HEADER, ""))
        by_cookie = self._matches(self._cookie(headers))
        by_address = reading and scope["path"] == "/" and self._matches(_token_in(scope))
        if not (by_header or by_cookie or by_address):
            return PlainTextResponse("Open the address that `fewtags review` printed; it contains the token.", 401)
        if not reading and self.read_only:
            return PlainTextResponse("This review is read-only.", 403)
        if not reading and not by_header and origin is None:
            return PlainTextResponse("The Origin header is missing; browsers send it.", 403)
        return None

    def _matches(self, token: str) -> bool:
        return secrets.compare_digest(token.encode(), self.token.encode())

    def _cookie(self, headers: Headers) -> str:
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(self.cookie)
        except CookieError:
            return ""
        return cookie.value if cookie is not None else ""

    def _with_headers(self, scope: Scope, send: Send) -> Send:
        async def wrapped(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
                if scope["path"] == "/" and message["status"] == 200:
                    value = f"{self.cookie}={self.token}; HttpOnly; SameSite=Strict; Path=/"
                    headers.append("set-cookie", value)
            await send(message)

        return wrapped


def _token_in(scope: Scope) -> str:
    return parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]


def _is_ip(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
