# SPDX-License-Identifier: Apache-2.0
"""Who may use the page: checks of every request and of every websocket, in front of the web framework."""

from __future__ import annotations

import asyncio
import ipaddress
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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

_HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
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
        """Return whether a request may have this Host header; a name that DNS could bind anew is refused."""
        name = urlsplit(f"//{host}").hostname or ""
        if name in ("localhost", "127.0.0.1", "::1", *self.hosts):
            return True
        with suppress(ValueError):
            return bool(self.password) and bool(ipaddress.ip_address(name))
        return False

    def allows_origin(self, headers: Mapping[str, str], *, is_required: bool) -> bool:
        """Return whether a request comes from the page itself, by its headers, of which Origin may be required."""
        origin = headers.get("origin")
        if origin is None:
            return not is_required
        return urlsplit(origin).netloc == headers.get("host") and urlsplit(origin).scheme in ("http", "https")

    def knows(self, cookies: Mapping[str, str]) -> bool:
        """Return whether a request has the cookie of a user who opened the page."""
        return secrets.compare_digest(cookies.get(self.cookie, "").encode(), self.session.encode())


class Guard:
    """An ASGI application that passes on only requests of users who may use the page."""

    def __init__(self, app: ASGIApp, access: UserAccess) -> None:
        self.app, self.access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on; see the ASGI specification."""
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        request = HTTPConnection(scope)
        is_socket = scope["type"] == "websocket"
        refusal: Response | None = None
        if not self.access.allows_host(request.headers.get("host", "")):
            refusal = PlainTextResponse("this name of a host is not allowed: see --allow-host", 421)
        elif not self.access.allows_origin(
            request.headers, is_required=is_socket or scope["method"] not in ("GET", "HEAD")
        ):
            refusal = PlainTextResponse("requests of other pages are refused", 403)
        elif not self.access.knows(request.cookies):
            refusal = Response(status_code=403) if is_socket else await self._open(request, receive)
        sender = _with_headers(scope, send)
        if refusal is None:
            await self._pass_on(scope, receive, sender)
        elif is_socket:
            await send({"type": "websocket.close", "code": 1008})
        else:
            refusal.headers["cache-control"] = "no-store"
            await refusal(scope, receive, sender)

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on; the application's error counts for nothing if the browser left before the answer."""
        has_left = False

        async def watched() -> Message:
            nonlocal has_left
            message = await receive()
            has_left |= message["type"] == "http.disconnect"
            return message

        try:
            await self.app(scope, watched, send)
        except RuntimeError:
            if not has_left:
                raise

    async def _open(self, request: HTTPConnection, receive: Receive) -> Response:
        """Return the answer to a request without a cookie, which gives one to who has the token or the password."""
        tokens = request.query_params.getlist("token")
        if any(secrets.compare_digest(token.encode(), self.access.token.encode()) for token in tokens):
            return self._welcome()
        if not self.access.password:
            return HTMLResponse(_LOCKED, 403)
        if request.url.path == "/login" and request.scope["method"] == "POST":
            password = parse_qs(await _body(receive)).get("password", [""])[0]
            if secrets.compare_digest(password.encode(), self.access.password.encode()):
                return self._welcome()
            await asyncio.sleep(_WRONG_PASSWORD_SECONDS)
        return HTMLResponse(_FORM, 403)

    def _welcome(self) -> Response:
        # A page that moves on by itself: browsers send a strict cookie only after a navigation of the same site.
        page = '<!DOCTYPE html><html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="0;url=/">'
        cookie = f"{self.access.cookie}={self.access.session}; HttpOnly; SameSite=Strict; Path=/"
        return HTMLResponse(page, headers={"set-cookie": cookie})


def _with_headers(scope: Scope, send: Send) -> Send:
    """Return a function that sends answers with the headers of security, and without any that allow other origins."""
    policy = RESULT_POLICY if scope["path"].startswith("/results/") else PAGE_POLICY

    async def forward(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name in [name for name in headers if name.startswith("access-control-")]:
                del headers[name]
            headers.update({**_HEADERS, "content-security-policy": policy})
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
