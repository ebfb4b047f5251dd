# SPDX-License-Identifier: Apache-2.0
"""Who may use the page: checks of every request and of every websocket, in front of the web framework."""

from __future__ import annotations

import asyncio
import ipaddress
import secrets
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from typing import Any, TypeAlias
from urllib.parse import parse_qs, urlsplit

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

_SAFE_METHODS = ("GET", "HEAD")
_LOGIN = "/login"
_WRONG_PASSWORD_SECONDS = 2.0
"""Delay in seconds of the answer to a wrong password, which slows down guessing."""
_MAX_LOGIN_BYTES = 4096
"""Largest size of the form with the password in bytes."""

PAGE_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; frame-ancestors 'self'; object-src 'none'; base-uri 'none'; "
    "form-action 'self'"
)
"""Content security policy of the page: the browser requests nothing from another computer."""
RESULT_POLICY = "sandbox allow-scripts allow-downloads; frame-ancestors 'self'"
"""Content security policy of results: their scripts have no access to the page. Reports have a policy of their own."""

_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
"""Headers of all answers."""

_FORM = """<!DOCTYPE html><html lang="en"><meta charset="utf-8"><meta name="color-scheme" content="light dark">
<meta name="viewport" content="width=device-width, initial-scale=1"><title>mcugen</title>
<form method="post" action="/login"><label>Password <input name="password" type="password" autofocus></label>
<button>Open</button></form>"""
_LOCKED = """<!DOCTYPE html><html lang="en"><meta charset="utf-8"><meta name="color-scheme" content="light dark">
<title>mcugen</title><p>Open the address that <code>mcugen ui</code> printed: it has a token, which is new at every
start.</p>"""


@dataclass(frozen=True)
class UserAccess:
    """Who may use the page.

    Attributes:
        port: The port of the server.
        hosts: Names of hosts that a request may name, besides loopback names.
        password: Password of users on other computers; "" if only the token opens the page.
        token: The random part of the address that opens the page.
        session: The random value of the cookie of users who opened it.
    """

    port: int
    hosts: Sequence[str] = ()
    password: str = ""
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    session: str = field(default_factory=lambda: secrets.token_urlsafe(24))

    @property
    def cookie(self) -> str:
        """Return the name of the cookie, which differs by port: browsers share cookies of all ports of a host."""
        return f"mcugen-{self.port}"

    def allows_host(self, host: str) -> bool:
        """Return whether a request may have this Host header; a name that DNS could bind anew is refused.

        Args:
            host: The header: a name or an address, and perhaps a port.
        """
        name = urlsplit(f"//{host}").hostname or ""
        if name in ("localhost", "127.0.0.1", "::1", *self.hosts):
            return True
        return bool(self.password) and _is_address(name)

    def allows_origin(self, headers: Mapping[str, str], *, is_required: bool) -> bool:
        """Return whether a request comes from the page itself.

        Args:
            headers: The headers of the request, with names in lower case.
            is_required: Whether a request without the Origin header is refused.
        """
        origin = headers.get("origin")
        if origin is None:
            return not is_required
        return urlsplit(origin).netloc == headers.get("host") and urlsplit(origin).scheme in ("http", "https")

    def knows(self, headers: Mapping[str, str]) -> bool:
        """Return whether a request has the cookie of a user who opened the page."""
        try:
            morsel = SimpleCookie(headers.get("cookie", "")).get(self.cookie)
        except CookieError:
            return False
        return morsel is not None and secrets.compare_digest(morsel.value.encode(), self.session.encode())


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class Guard:
    """An ASGI application that passes on only requests of users who may use the page.

    Attributes:
        app: The application behind it.
        access: Who may use the page.
    """

    def __init__(self, app: Application, access: UserAccess) -> None:
        self.app, self.access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on; see the ASGI specification."""
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        is_socket = scope["type"] == "websocket"
        needs_origin = is_socket or (scope["method"] not in _SAFE_METHODS)
        if not self.access.allows_host(headers.get("host", "")):
            await _refuse(scope, send, 421, "this name of a host is not allowed: see --allow-host")
        elif not self.access.allows_origin(headers, is_required=needs_origin):
            await _refuse(scope, send, 403, "requests of other pages are refused")
        elif self.access.knows(headers):
            await self.app(scope, receive, _with_headers(scope, send))
        elif is_socket:
            await _refuse(scope, send, 403, "")
        else:
            await self._open(scope, receive, send)

    async def _open(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request without a cookie: give one to who has the token or the password."""
        tokens = parse_qs(scope["query_string"].decode("latin-1")).get("token", [])
        if any(secrets.compare_digest(token.encode(), self.access.token.encode()) for token in tokens):
            await self._welcome(send)
        elif self.access.password and scope["path"] == _LOGIN and scope["method"] == "POST":
            password = parse_qs(await _body(receive)).get("password", [""])[0]
            if secrets.compare_digest(password.encode(), self.access.password.encode()):
                await self._welcome(send)
            else:
                await asyncio.sleep(_WRONG_PASSWORD_SECONDS)
                await _answer(send, 403, _FORM)
        else:
            await _answer(send, 403, _FORM if self.access.password else _LOCKED)

    async def _welcome(self, send: Send) -> None:
        cookie = f"{self.access.cookie}={self.access.session}; HttpOnly; SameSite=Strict; Path=/"
        # A page that moves on by itself: browsers send a strict cookie only after a navigation of the same site.
        page = '<!DOCTYPE html><html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="0;url=/">'
        await _answer(send, 200, page, ((b"set-cookie", cookie.encode()),))


def _with_headers(scope: Scope, send: Send) -> Send:
    """Return a function that sends answers with the headers of security, and without any that allow other origins."""
    is_result = scope["path"].startswith("/results/")
    policy = (RESULT_POLICY if is_result else PAGE_POLICY).encode()

    async def forward(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            kept = [(name, value) for name, value in message["headers"] if not name.startswith(b"access-control-")]
            message["headers"] = [*kept, *_HEADERS, (b"content-security-policy", policy)]
        await send(message)

    return forward


async def _body(receive: Receive) -> str:
    """Return the body of a request, at most _MAX_LOGIN_BYTES of it."""
    data = b""
    while len(data) < _MAX_LOGIN_BYTES:
        message = await receive()
        data += message.get("body", b"")
        if not message.get("more_body"):
            break
    return data[:_MAX_LOGIN_BYTES].decode("utf-8", "replace")


async def _refuse(scope: Scope, send: Send, status: int, reason: str) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008})
        return
    await _answer(send, status, reason, kind=b"text/plain; charset=utf-8")


async def _answer(
    send: Send,
    status: int,
    text: str,
    headers: Sequence[tuple[bytes, bytes]] = (),
    kind: bytes = b"text/html; charset=utf-8",
) -> None:
    own = [(b"content-type", kind), (b"cache-control", b"no-store"), (b"content-security-policy", PAGE_POLICY.encode())]
    await send({"type": "http.response.start", "status": status, "headers": [*own, *_HEADERS, *headers]})
    await send({"type": "http.response.body", "body": text.encode()})
