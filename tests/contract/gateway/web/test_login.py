"""Browser sessions: login with a key, CSRF protection, logout."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from gateway.auth.keys import revoke_key
from gateway.auth.middleware import COOKIE, TOKEN_COOKIE
from tests.support.gateway_under_test import Gateway, picture, serve_gateway

HTML = {"Accept": "text/html,*/*"}


def log_in(gateway: Gateway, key: str, address: str = "/", **headers: str) -> httpx.Response:
    ours = {"Origin": str(gateway.client.base_url).rstrip("/"), **headers}
    return gateway.client.post("/login", data={"key": key, "next": address}, headers=ours)


def test_a_page_redirects_to_the_login_and_back(locked: Gateway, key: str) -> None:
    client = locked.client
    redirect = client.get("/jobs/x/view?class=bus", headers=HTML)
    assert redirect.status_code == 303
    form = client.get(redirect.headers["Location"])
    assert form.status_code == 200
    assert 'name="next" value="/jobs/x/view?class=bus"' in form.text
    assert 'type="password"' in form.text
    wrong = log_in(locked, "cf_wrong")
    assert (wrong.status_code, COOKIE in wrong.cookies) == (401, False)
    assert "not valid" in wrong.text
    reply = log_in(locked, key, "/jobs/x/view?class=bus")
    assert (reply.status_code, reply.headers["Location"]) == (303, "/jobs/x/view?class=bus")
    session, token = reply.headers.get_list("Set-Cookie")
    assert COOKIE in session
    assert "HttpOnly" in session
    assert "SameSite=lax" in session
    assert "Max-Age=43200" in session
    assert "SameSite=strict" in token
    assert client.get("/", headers=HTML).status_code == 200
    assert client.get("/jobs").status_code == 200
    for secret in (key, client.cookies[COOKIE]):
        assert secret not in client.get("/", headers=HTML).text


def test_cookies_set_over_https_are_secure(locked: Gateway, key: str) -> None:
    host = str(locked.client.base_url).removeprefix("http://").rstrip("/")
    reply = log_in(locked, key, Origin=f"https://{host}")
    assert all("Secure" in cookie for cookie in reply.headers.get_list("Set-Cookie"))


def test_a_change_needs_the_sessions_csrf_token_and_our_origin(locked: Gateway, key: str) -> None:
    client = locked.client
    log_in(locked, key)
    token = client.cookies[TOKEN_COOKIE]
    ours = str(client.base_url).rstrip("/")

    def status(**headers: str) -> int:
        return client.post("/jobs", data={"task": "abc"}, headers=headers).status_code

    assert status() == 403
    assert status(Origin=ours) == 403
    assert status(**{"X-CSRF-Token": "0" * 64}) == 403
    assert client.post("/jobs", headers={b"X-CSRF-Token": b"\xe9"}).status_code == 403
    assert status(**{"X-CSRF-Token": token, "Origin": "https://evil.example"}) == 403
    assert status(**{"X-CSRF-Token": token, "Sec-Fetch-Site": "cross-site"}) == 403
    assert status(**{"X-CSRF-Token": token, "Origin": ours}) == 415  # through the gate; the form is no form with files


@pytest.mark.parametrize("headers", [{"Origin": "https://evil.example"}, {"Origin": "null"}, {}])
def test_other_sites_cannot_log_a_browser_in(locked: Gateway, key: str, headers: dict[str, str]) -> None:
    reply = locked.client.post("/login", data={"key": key}, headers=headers)
    assert (reply.status_code, COOKIE in reply.cookies) == (403, False)


@pytest.mark.parametrize("address", ["https://evil.example/", "//evil.example", "/\\evil.example", "javascript:x", ""])
def test_the_login_redirects_only_within_the_site(locked: Gateway, key: str, address: str) -> None:
    assert log_in(locked, key, address).headers["Location"] == "/"


@pytest.mark.parametrize("kind", ["application/json", "multipart/form-data; boundary=x", "text/plain", None])
def test_malformed_login_forms_are_refused(locked: Gateway, key: str, kind: str | None) -> None:
    ours = {"Origin": str(locked.client.base_url).rstrip("/"), **({"Content-Type": kind} if kind else {})}
    reply = locked.client.post("/login", content=f"key={key}".encode(), headers=ours)
    assert (reply.status_code, reply.headers["Content-Type"]) == (415, "application/problem+json")
    assert "application/x-www-form-urlencoded" in reply.json()["detail"]
    assert COOKIE not in reply.cookies
    charset = {**ours, "Content-Type": "Application/X-WWW-Form-Urlencoded; charset=UTF-8"}
    assert locked.client.post("/login", content=f"key={key}".encode(), headers=charset).status_code == 303


def test_the_job_form_works_without_scripts_but_not_from_other_sites(locked: Gateway, key: str) -> None:
    client, ours = locked.client, str(locked.client.base_url).rstrip("/")
    log_in(locked, key)
    data, files = {"task": "classify the vehicle", "methods": "dillema"}, {"images": ("a.png", picture())}

    def status(**headers: str) -> int:
        return client.post("/", headers={**HTML, **headers}, data=data, files=files).status_code

    assert status(Origin=ours) == 303
    assert status(**{"Sec-Fetch-Site": "same-origin"}) == 303
    assert status() == 403
    assert status(Origin="null") == 403
    assert status(Origin="https://evil.example") == 403
    assert status(Origin=ours, **{"Sec-Fetch-Site": "cross-site"}) == 403
    assert len(client.get("/jobs").json()["jobs"]) == 2


def test_logging_out_ends_the_session_and_revoking_the_key_ends_all(locked: Gateway, key: str) -> None:
    client = locked.client
    log_in(locked, key)
    stolen = client.cookies[COOKIE]
    assert client.post("/logout", headers={"X-CSRF-Token": client.cookies[TOKEN_COOKIE]}).status_code == 204
    assert COOKIE not in client.cookies
    assert client.get("/jobs", headers={"Cookie": f"{COOKIE}={stolen}"}).status_code == 401
    log_in(locked, key)
    assert client.get("/jobs").status_code == 200
    with locked.context.sessions.begin() as session:
        revoke_key(session, key)
    assert client.get("/jobs").status_code == 401
    assert log_in(locked, key).status_code == 401


@pytest.mark.slow
def test_without_authentication_there_is_no_login(tmp_path: Path) -> None:
    with serve_gateway(tmp_path) as gateway:
        assert gateway.client.get("/login").headers["Location"] == "/"
