"""`ewc watch` shows the latest state of a run, refuses what is odd, and keeps serving."""

import http.client
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.runs import end, make_learning_curves

from ewc_paper.page import watch
from ewc_paper.page.watch import CONNECTIONS, REQUEST_BYTES, LivePage, Server

Answer = tuple[int, dict[str, str], bytes]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(watch, "REQUEST_SECONDS", 2.0)
    make_learning_curves(tmp_path / "run")
    (tmp_path / "secret.txt").write_text("secret")
    with Server(tmp_path / "run", 0) as found:
        thread = threading.Thread(target=found.serve_forever, args=(0.05,))
        thread.start()
        yield found
        found.shutdown()
        thread.join()


def port_of(server: Server) -> int:
    return int(server.server_address[1])


def ask(server: Server, path: str = "/", method: str = "GET", **headers: str) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", port_of(server), timeout=20)
    try:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, headers=named)
        answer = connection.getresponse()
        return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
    finally:
        connection.close()


def say(server: Server, content: bytes, seconds: float = 20) -> bytes:
    """Send bytes as they are, and return the whole answer; nothing if the server hung up."""
    with socket.create_connection(("127.0.0.1", port_of(server)), timeout=seconds) as client:
        try:
            client.sendall(content)
            return b"".join(iter(lambda: client.recv(65_536), b""))
        except ConnectionError:
            return b""


def assert_serves(server: Server) -> None:
    status, _, content = ask(server)
    assert (status, b"<h1>run</h1>" in content) == (200, True)


def test_the_page_is_served_and_may_not_be_framed_or_embedded(server: Server) -> None:
    status, headers, content = ask(server)
    assert status == 200
    assert content.endswith(b"</html>")
    assert headers["content-type"] == "text/html; charset=utf-8"
    assert headers["x-frame-options"] == "DENY"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert "python" not in headers["server"].lower()


def test_a_question_for_what_is_known_has_a_short_answer(server: Server) -> None:
    _, headers, content = ask(server)
    status, again, nothing = ask(server, If_None_Match=headers["etag"])
    assert (status, nothing, again["etag"]) == (304, b"", headers["etag"])
    status, head, nothing = ask(server, method="HEAD")
    assert (status, nothing, int(head["content-length"])) == (200, b"", len(content))


def test_a_new_measurement_is_on_the_page(server: Server, tmp_path: Path) -> None:
    _, before, _ = ask(server)
    watch.RunDirectory(tmp_path / "run").part("l2").start({})
    watch.RunDirectory(tmp_path / "run").part("l2").append(end(0, 0.4321))
    status, after, content = ask(server, If_None_Match=before["etag"])
    assert status == 200
    assert after["etag"] != before["etag"]
    assert b"43.21" in content


def test_the_end_of_a_run_is_on_the_page(server: Server, tmp_path: Path) -> None:
    with watch.RunDirectory(tmp_path / "run").locked():
        assert b"<dd>running</dd>" in ask(server)[2]
    assert b"<dd>running</dd>" not in ask(server)[2]


@pytest.mark.parametrize(
    "path",
    [
        "/../secret.txt",
        "/run/../../secret.txt",
        "/%2e%2e/secret.txt",
        "/%2e%2e%2fsecret.txt",
        "/..%5csecret.txt",
        "/%252e%252e%252fsecret.txt",
        "/..%c0%afsecret.txt",
        "/....//secret.txt",
        "//etc/passwd",
        "/etc/passwd",
        "/config.json",
        "/?file=../secret.txt",
        "/%00",
        "http://127.0.0.1:{port}/secret.txt",
        "*",
    ],
)
def test_no_other_path_is_served(server: Server, path: str) -> None:
    status, _, content = ask(server, path.replace("{port}", str(port_of(server))))
    assert status == 404
    assert b"secret" not in content
    assert b"experiment" not in content
    assert_serves(server)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "PATCH", "XYZZY"])
def test_other_methods_are_refused(server: Server, method: str) -> None:
    assert ask(server, method=method)[0] == 405
    assert_serves(server)


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "", "[::1]:{port}"]
)
def test_another_host_is_refused(server: Server, host: str) -> None:
    status, _, content = ask(server, Host=host.format(port=port_of(server)))
    assert status in (400, 421)
    assert b"<h1>" not in content
    assert_serves(server)


def test_a_forwarded_port_of_another_number_is_explained(server: Server) -> None:
    port = port_of(server)
    status, _, content = ask(server, Host="127.0.0.1:1")
    assert status == 421
    assert f"ssh -L {port}:127.0.0.1:{port} MACHINE".encode() in content


def test_no_host_and_two_hosts_are_refused(server: Server) -> None:
    own = b"Host: 127.0.0.1:%d\r\n" % port_of(server)
    for hosts in (b"", own + b"Host: evil.example\r\n", own + own):
        answer = say(server, b"GET / HTTP/1.1\r\n" + hosts + b"\r\n")
        assert answer.startswith(b"HTTP/1.0 421")
        assert b"<h1>" not in answer


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("Origin", "http://evil.example"),
        ("Origin", "null"),
        ("Origin", "https://127.0.0.1:{port}"),
        ("Origin", "http://127.0.0.1:{port}.evil.example"),
        ("Sec-Fetch-Site", "cross-site"),
        ("Sec-Fetch-Site", "same-site"),
    ],
)
def test_another_origin_is_refused(server: Server, header: str, value: str) -> None:
    status, _, content = ask(server, **{header: value.format(port=port_of(server))})
    assert (status, b"<h1>" in content) == (403, False)
    assert_serves(server)


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "LOCALHOST"])
def test_the_own_origin_and_host_are_served(server: Server, name: str) -> None:
    own = f"{name}:{port_of(server)}"
    status, _, _ = ask(server, Host=own, Origin=f"http://{own}", Sec_Fetch_Site="same-origin")
    assert status == 200


@pytest.mark.parametrize(
    "content",
    [
        b"GET /" + b"a" * (2 * REQUEST_BYTES) + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: " + b"a" * (2 * REQUEST_BYTES) + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"".join(b"X%d: y\r\n" % n for n in range(5000)) + b"\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + os.urandom(500),
        b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: \xff\xfe\r\n\r\n",
        b"\x00" * 100 + b"\r\n\r\n",
    ],
    ids=["line", "header", "headers", "tls", "empty", "short", "version", "bytes", "zeros"],
)
def test_huge_and_broken_requests_are_refused(server: Server, content: bytes) -> None:
    answer = say(server, content)
    assert b"<h1>" not in answer
    assert b" 200 " not in answer[:20]
    assert_serves(server)


def test_a_slow_client_is_cut_off_and_others_are_served_meanwhile(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", port_of(server)), timeout=20) as slow:
        began = time.monotonic()
        for letter in b"GET / HT":  # a byte at a time never ends a request
            slow.sendall(bytes([letter]))
            time.sleep(0.05)
        assert_serves(server)
        assert slow.recv(100) == b""
        assert time.monotonic() - began < 10
    assert_serves(server)


def test_a_client_that_does_not_read_is_cut_off(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "ANSWER_SECONDS", 0.5)
    monkeypatch.setattr(server.page, "latest", lambda: ("1", b"x" * 50_000_000))
    request = b"GET / HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n" % port_of(server)
    with socket.create_connection(("127.0.0.1", port_of(server)), timeout=20) as greedy:
        greedy.sendall(request)
        time.sleep(2)
        taken = 0
        try:
            while found := greedy.recv(1_000_000):
                taken += len(found)
        except ConnectionError:
            pass
    assert taken < 50_000_000


def test_more_clients_than_threads_are_turned_away_and_it_recovers(server: Server) -> None:
    place = ("127.0.0.1", port_of(server))
    idle = [socket.create_connection(place, timeout=20) for _ in range(CONNECTIONS)]
    try:
        time.sleep(0.3)
        assert threading.active_count() < CONNECTIONS + 10
        for request in (b"GET / HTTP/1.1\r\n\r\n", b""):  # also to one that says nothing
            answer = say(server, request)
            assert answer.startswith(b"HTTP/1.0 503 Service Unavailable\r\n")
            assert b"Retry-After: 2\r\n" in answer
            assert b"try again in a moment" in answer
        assert [one.recv(1) for one in idle] == [b""] * CONNECTIONS  # all were cut off in time
    finally:
        for one in idle:
            one.close()
    assert_serves(server)


def test_it_listens_on_the_loopback_address_alone(server: Server) -> None:
    assert server.server_address[0] == "127.0.0.1"


def test_what_is_wrong_is_said_on_the_page(tmp_path: Path) -> None:
    page = LivePage(tmp_path)
    assert b"holds no run" in page.latest()[1]
    make_learning_curves(tmp_path / "<script>alert(1)<!--")
    make_learning_curves(tmp_path / "b")
    shown = page.latest()[1]
    assert b"&lt;script&gt;alert(1)&lt;!--</h2>" in shown
    assert b"<script>alert(1)" not in shown


def test_files_that_are_something_else_are_no_reason_to_hang_up(tmp_path: Path) -> None:
    run = make_learning_curves(tmp_path / "run")
    (run.path / "lock").mkdir()
    os.mkfifo(run.path / "parts" / "ewc" / "checkpoint.safetensors")
    page = LivePage(run.path)
    assert b"every checkpoint in" in page.latest()[1]
    (run.path / "parts" / "ewc" / "checkpoint.safetensors").unlink()
    assert b"<h1>run</h1>" in page.latest()[1]
    place = os.fsencode(run.path) + b"/parts/\xff\xfe"
    os.mkdir(place)
    with open(place + b"/config.json", "w") as file:
        file.write("{}")
    assert b"its name cannot be shown" in page.latest()[1]


def test_a_directory_whose_name_is_not_utf_8_is_shown(tmp_path: Path) -> None:
    run = make_learning_curves(tmp_path / "run")
    os.rename(run.path, os.fsencode(tmp_path) + b"/\xff")
    assert b"<h1>?</h1>" in LivePage(tmp_path / os.fsdecode(b"\xff")).latest()[1]


def test_a_page_is_built_once_for_many_readers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = []
    monkeypatch.setattr(watch, "build_page", lambda *a, **k: built.append(1) or b"page")
    page = LivePage(tmp_path)
    readers = [threading.Thread(target=page.latest) for _ in range(8)]
    for one in readers:
        one.start()
    for one in readers:
        one.join()
    assert len(built) == 1


def test_ctrl_c_ends_it_cleanly_while_a_client_is_connected(tmp_path: Path) -> None:
    run = make_learning_curves(tmp_path / "run")
    command = [sys.executable, "-m", "ewc_paper", "watch", str(run.path)]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # Tests that run in the background of a shell ignore the signal, and so would this process.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        assert process.stdout is not None
        said = process.stdout.readline().decode()
        assert said.startswith(f"watching {run.path} at http://127.0.0.1:")
        port = int(said.split(":")[2].split("/")[0])
        with socket.create_connection(("127.0.0.1", port)):
            process.send_signal(signal.SIGINT)
            out, error = process.communicate(timeout=20)
    finally:
        process.kill()
    assert (process.returncode, out, error) == (0, b"ended\n", b"")
