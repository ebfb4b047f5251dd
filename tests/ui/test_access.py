# SPDX-License-Identifier: Apache-2.0
"""Who may use the page: every request and websocket passes the guard, whatever the framework behind it does."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import Any

import pytest

from mcugen.core.errors import UsageError
from mcugen.ui.access import Guard, UserAccess
from mcugen.ui.server import ServerOptions

HOST = "127.0.0.1:7000"
OWN = {"host": HOST, "origin": f"http://{HOST}"}


class Behind:
    """An application that answers everything, and allows every origin."""

    def __init__(self) -> None:
        self.calls = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.calls += 1
        if scope["type"] == "http":
            allowing = [(b"access-control-allow-origin", b"*")]
            await send({"type": "http.response.start", "status": 200, "headers": allowing})
            await send({"type": "http.response.body", "body": b"secret"})
        else:
            await send({"type": "websocket.accept"})


def ask(
    access: UserAccess,
    headers: dict[str, str],
    *,
    kind: str = "http",
    method: str = "GET",
    path: str = "/",
    query: str = "",
    body: bytes = b"",
) -> tuple[list[Any], int]:
    """Return the messages that the guard sends, and the number of calls that it passed on."""
    sent: list[Any] = []
    behind = Behind()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": kind,
        "method": method,
        "path": path,
        "query_string": query.encode(),
        "headers": [(k.encode(), v.encode()) for k, v in headers.items()],
    }
    asyncio.run(Guard(behind, access)(scope, receive, send))
    return sent, behind.calls


@pytest.fixture
def access() -> UserAccess:
    return UserAccess(7000)


def with_cookie(access: UserAccess, headers: dict[str, str]) -> dict[str, str]:
    return {**headers, "cookie": f"{access.cookie}={access.session}"}


def test_without_the_token_nothing_is_told(access: UserAccess) -> None:
    for query in ("", "token=", "token=x", f"token={access.token}x", f"session={access.session}"):
        sent, calls = ask(access, {"host": HOST}, query=query)
        assert (sent[0]["status"], calls) == (403, 0), query
        assert access.token.encode() not in sent[1]["body"]


def test_the_token_gives_a_cookie_that_scripts_and_other_sites_do_not_get(access: UserAccess) -> None:
    sent, calls = ask(access, {"host": HOST}, query=f"token={access.token}")
    cookie = dict(sent[0]["headers"])[b"set-cookie"].decode()
    assert (sent[0]["status"], calls) == (200, 0)
    assert cookie == f"mcugen-7000={access.session}; HttpOnly; SameSite=Strict; Path=/"
    assert access.token != access.session


@pytest.mark.parametrize("kind", ["http", "websocket"])
@pytest.mark.parametrize(
    ("changed", "passes"),
    [
        ({}, True),
        ({"origin": "http://evil.example"}, False),
        ({"origin": "null"}, False),
        ({"origin": "http://127.0.0.1:7001"}, False),
        ({"origin": "http://localhost:7000"}, False),
        ({"origin": f"file://{HOST}"}, False),
        ({"host": "evil.example:7000", "origin": "http://evil.example:7000"}, False),
        ({"host": "127.0.0.1.evil.example:7000", "origin": "http://127.0.0.1.evil.example:7000"}, False),
        ({"host": "10.0.0.1:7000", "origin": "http://10.0.0.1:7000"}, False),
        ({"host": "", "origin": "http://"}, False),
        ({"host": "[::1]:7000", "origin": "http://[::1]:7000"}, True),
        ({"host": "localhost:7000", "origin": "http://localhost:7000"}, True),
    ],
)
def test_only_the_page_itself_is_served(access: UserAccess, kind: str, changed: dict[str, str], passes: bool) -> None:
    _, calls = ask(access, with_cookie(access, {**OWN, **changed}), kind=kind)
    assert calls == int(passes)


@pytest.mark.parametrize(("kind", "method"), [("websocket", "GET"), ("http", "PUT"), ("http", "POST")])
def test_what_changes_something_needs_an_origin(access: UserAccess, kind: str, method: str) -> None:
    assert ask(access, with_cookie(access, {"host": HOST}), kind=kind, method=method)[1] == 0
    assert ask(access, with_cookie(access, OWN), kind=kind, method=method)[1] == 1


@pytest.mark.parametrize("cookie", ["", "mcugen-7000=", "mcugen-7000=x", "a=b; ;;=", "mcugen-7001={session}"])
def test_other_cookies_do_not_open_the_page(access: UserAccess, cookie: str) -> None:
    for kind in ("http", "websocket"):
        headers = {**OWN, "cookie": cookie.format(session=access.session)}
        assert ask(access, headers, kind=kind)[1] == 0


def test_answers_allow_no_other_origin_and_no_other_source(access: UserAccess) -> None:
    sent, _ = ask(access, with_cookie(access, OWN))
    headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    assert not [name for name in headers if name.startswith("access-control")]
    assert headers["content-security-policy"].startswith("default-src 'self';")
    assert headers["x-content-type-options"] == "nosniff"
    sent, _ = ask(access, with_cookie(access, OWN), path="/results/0/report.html")
    assert "sandbox allow-scripts" in dict(sent[0]["headers"])[b"content-security-policy"].decode()
    assert "allow-same-origin" not in str(sent[0]["headers"])


def test_a_password_opens_the_page_for_other_computers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcugen.ui.access._WRONG_PASSWORD_SECONDS", 0.0)
    access = UserAccess(7000, ("pc.local",), "geheim")
    host = {"host": "10.0.0.1:7000", "origin": "http://10.0.0.1:7000"}
    for body, status in ((b"password=x", 403), (b"", 403), (b"password=geheim", 200)):
        sent, calls = ask(access, host, method="POST", path="/login", body=body)
        assert (sent[0]["status"], calls) == (status, 0)
    assert ask(access, with_cookie(access, host))[1] == 1
    assert ask(access, with_cookie(access, {"host": "pc.local:7000"}))[1] == 1
    assert ask(access, with_cookie(access, {"host": "evil.example:7000"}))[1] == 0


def test_other_computers_need_a_password() -> None:
    for host in ("0.0.0.0", "::", "192.168.1.2"):
        with pytest.raises(UsageError, match=r"password.*found: --host .*try: give --password"):
            ServerOptions(host)
    ServerOptions("0.0.0.0", password="geheim")


@pytest.mark.parametrize(("kind", "is_error"), [("http.disconnect", False), ("http.request", True)])
def test_a_browser_that_leaves_is_no_error(access: UserAccess, kind: str, is_error: bool) -> None:
    async def receive() -> dict[str, Any]:
        return {"type": kind}

    async def leaves(_scope: Any, receive: Any, _send: Any) -> None:
        await receive()
        raise RuntimeError("No response returned.")

    headers = [(name.encode(), value.encode()) for name, value in with_cookie(access, OWN).items()]
    scope = {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": headers}
    with pytest.raises(RuntimeError) if is_error else nullcontext():
        asyncio.run(Guard(leaves, access)(scope, receive, receive))
