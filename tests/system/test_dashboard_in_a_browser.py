"""The dashboard in a real browser, on a real node."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.support.browser import Browser, NoBrowser
from tests.support.fixtures import RUN, flavours
from tests.support.node import Node
from tests.support.server import ContainerServer, ProcessServer, Server
from tests.support.until import until

HTML = "<img src=x onerror=\"document.title='stolen'\"><script>document.title='stolen'</script><b>bold</b>"
HANDLERS = f'''
"""Handlers for the dashboard's tests: what is missing can be put there later."""
import time
from pathlib import Path
from prefork_q import App, TaskContext

app = App()

@app.task(max_attempts=1)
def resize(path: str, number: int = 0) -> dict[str, int]:
    if not Path(path).exists():
        raise FileNotFoundError({HTML!r} + " is no file")
    return {{"number": number}}

@app.task
def wait_for(ctx: TaskContext, path: str) -> None:
    ctx.progress(0.25, "waiting")
    while not Path(path).exists() and not ctx.cancelled:
        time.sleep(0.02)
'''
LARGE = 9007199254740993
"""The first whole number that JavaScript's cannot hold."""
TOKENS = {"read": "token-that-may-read-only", "admin": "token-that-may-do-anything"}


@pytest.fixture(scope="session")
def browser(no_process_left: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One for all the tests of a process."""
    try:
        browser = Browser(tmp_path_factory.mktemp("profile"))
    except NoBrowser as reason:
        if os.environ.get("PREFORK_Q_TEST_BROWSER") == "1":
            pytest.fail(f"no browser to test with: {reason}", pytrace=False)
        pytest.skip(f"no browser to test with: {reason}")
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def handlers(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("handlers") / "of_dashboard.py"
    file.write_text(HANDLERS)
    return f"{file}:app"


def started(node: Node) -> Iterator[Node]:
    yield node.start()
    node.close()


@pytest.fixture(scope="module")
def node(no_process_left: None, handlers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node with the embedded server. Its tests keep to queues of their own."""
    yield from started(
        Node(None, tmp_path_factory.mktemp("node"), target=handlers, queues="default,one,two,three,four,five")
    )


def page(node: Node, place: str = "") -> str:
    return f"http://127.0.0.1:{node.port}/{place}"


def make_dead(node: Node, queue: str, path: Path, n: int = 1) -> list[str]:
    ids = [node.submit("resize", {"path": str(path), "number": LARGE}, queue=queue) for _ in range(n)]
    assert {node.ended(id)["status"] for id in ids} == {"dead"}
    return ids


def status(node: Node, id: str) -> str:
    return str(node.task(id)["status"])


def queue(node: Node, name: str) -> dict[str, Any]:
    queues = node.http("GET", "/queues").json["queues"]
    return next(entry for entry in queues if entry["name"] == name)


def row(key: str) -> str:
    return f'tr[data-key="{key}"]'


def test_an_operator_sees_what_waits_and_what_runs_and_pauses_a_queue(
    browser: Browser, node: Node, tmp_path: Path
) -> None:
    release = tmp_path / "release"
    running = node.submit("wait_for", {"path": str(release)}, queue="one")
    until(lambda: status(node, running) == "processing", 10)
    browser.open(page(node))

    browser.wait_text("#state", "Live")
    browser.wait_text("#queues", "one")
    browser.wait_text("#workers", "wait_for for")
    browser.wait_text("#workers", "MiB")

    browser.click(f"#queues {row('one')} button")
    browser.wait_text("#told", "Queue one is paused")
    assert queue(node, "one")["paused"]
    browser.wait_text(f"#queues {row('one')}", "paused")
    held_back = node.submit("wait_for", {"path": str(release)}, queue="one")
    until(lambda: browser.text(f'#queues {row("one")} [data-label="Pending"]') == "1", 10)
    assert status(node, held_back) == "pending"

    browser.click(f"#queues {row('one')} button")
    browser.wait_text("#told", "Queue one goes on")
    release.touch()
    assert node.ended(held_back)["status"] == "succeeded"
    until(lambda: "wait_for" not in browser.text("#workers"), 10)
    assert browser.complaints() == []


def test_a_dead_task_is_retried_by_a_click_and_its_html_is_only_text(
    browser: Browser, node: Node, tmp_path: Path
) -> None:
    (id,) = make_dead(node, "two", tmp_path / "picture")
    browser.open(page(node, "#dead?queue=two"))
    browser.wait_text("#dead-table", HTML)

    browser.click(f"{row(id)} a")
    browser.wait_text("#task-body", HTML)
    assert "Traceback" in browser.text("#task-body")
    assert str(LARGE) in browser.text("#task-body")
    assert browser.script("return document.querySelectorAll('main img, main b, main script').length") == 0
    assert browser.script("return document.title") == "prefork-q"

    (tmp_path / "picture").touch()
    browser.click("#task-actions button")
    browser.wait_text("#told", "1 task retried")
    browser.wait_text("#task-body", "succeeded")
    assert status(node, id) == "succeeded"
    assert str(LARGE) in browser.text("#task-body pre")
    assert not browser.shown("#task-actions button")
    browser.driver.back()
    browser.wait_text("#dead-empty", "There are none")
    assert browser.complaints() == []


def test_selected_tasks_are_retried_and_deleting_asks_first(
    browser: Browser, node: Node, tmp_path: Path
) -> None:
    keep, *others = make_dead(node, "three", tmp_path / "picture", n=3)
    browser.open(page(node, "#dead?queue=three"))
    browser.find(row(keep))

    browser.click(f"{row(keep)} button.danger")
    browser.wait_text("dialog", keep)
    browser.click("#confirm-no")
    until(lambda: not browser.shown("dialog"), 5)
    assert browser.script("return document.activeElement.textContent") == "Delete …"
    assert status(node, keep) == "dead"

    for id in others:
        browser.click(f"{row(id)} input")
    browser.wait_text("#selected-count", "2 selected")
    browser.click("#delete-selected")
    browser.wait_text("dialog", "2 dead tasks")
    browser.click("#confirm-yes")
    browser.wait_text("#told", "2 tasks deleted")
    assert [node.http("GET", f"/tasks/{id}").status for id in others] == [404, 404]
    until(lambda: not browser.shown(row(others[0])), 5)

    (tmp_path / "picture").touch()
    browser.click("#dead-table thead input")
    browser.click("#retry-selected")
    browser.wait_text("#told", "1 task retried")
    assert node.ended(keep)["status"] == "succeeded"
    browser.wait_text("#dead-empty", "There are none")


def test_pages_are_turned_tasks_are_cancelled_and_keyboards_and_phones_do(
    browser: Browser, node: Node, tmp_path: Path
) -> None:
    ids = node.submit_many("wait_for", [{"path": "/"}] * 60, queue="four", delay_s=3600)
    browser.open(page(node, "#tasks?status=delayed&queue=four"))

    until(lambda: len(browser.shown("#tasks-table tbody tr")) == 50, 10)
    browser.click("#tasks-pages button:last-child")
    until(lambda: len(browser.shown("#tasks-table tbody tr")) == 10, 10)
    browser.click("#tasks-pages button:first-child")
    until(lambda: len(browser.shown("#tasks-table tbody tr")) == 50, 10)

    # Every control says to a screen reader what it is.
    nameless = [
        found for found in browser.command("Accessibility.getFullAXTree")["nodes"]
        if not found.get("ignored")
        and found["role"]["value"] in ("button", "link", "textbox", "combobox", "checkbox", "table")
        and not found.get("name", {}).get("value")
    ]  # fmt: skip
    assert nameless == []

    place = browser.script("return getComputedStyle(document.body).backgroundColor")
    dark = [{"name": "prefers-color-scheme", "value": "dark"}]
    browser.command("Emulation.setEmulatedMedia", features=dark)
    assert browser.script("return getComputedStyle(document.body).backgroundColor") != place
    phone = {"width": 360, "height": 740, "deviceScaleFactor": 1, "mobile": True}
    browser.command("Emulation.setDeviceMetricsOverride", **phone)
    for view in ("#overview", "#dead", f"#task/{ids[0]}"):
        browser.driver.get(page(node, view))
        browser.find(f"#{view[1:].partition('/')[0]}-heading")
        assert browser.script("return document.documentElement.scrollWidth") <= 360, view
    browser.wait_text("#task-body", "delayed")

    # All by keys: the button, then the second one of the dialog.
    browser.find("#task-actions button").send_keys("\n")
    browser.find("#confirm-yes").send_keys("\n")
    browser.wait_text("#told", "The task is cancelled")
    assert status(node, ids[0]) == "cancelled"
    browser.wait_text("#task-body", "cancelled")


@pytest.fixture
def foreign_site() -> Iterator[Callable[[str], str]]:
    """Another site, on another port: returns a function that gives it a page and returns its URL."""
    pages: list[str] = []

    class Pages(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(pages[-1].encode())

        def log_message(self, *arguments: object) -> None:
            """Nobody reads it."""

    def show(page: str) -> str:
        pages.append(page)
        return f"http://127.0.0.1:{site.server_address[1]}/"

    with ThreadingHTTPServer(("127.0.0.1", 0), Pages) as site:
        thread = threading.Thread(target=site.serve_forever)
        thread.start()
        yield show
        site.shutdown()
        thread.join()


def test_a_foreign_page_can_neither_change_nor_frame_nor_read_anything(
    browser: Browser, node: Node, foreign_site: Callable[[str], str], tmp_path: Path
) -> None:
    (id,) = make_dead(node, "five", tmp_path / "picture")
    attack = f"""<!doctype html><title>trying</title><iframe src="{page(node)}" id="frame"></iframe>
        <form method="post" target="hidden" action="{page(node, "queues/five/pause")}"></form>
        <iframe name="hidden"></iframe>
        <script type="module">
          document.forms[0].submit();
          const simple = {{ mode: "no-cors", credentials: "include" }};
          const results = await Promise.allSettled([
            fetch("{page(node, "queues/five/pause")}", {{ ...simple, method: "POST" }}),
            fetch("{page(node, f"dead/{id}/retry")}", {{ ...simple, method: "POST" }}),
            fetch("{page(node, "dead/retry")}", {{ ...simple, method: "POST", body: '{{"limit":1}}' }}),
            fetch("{page(node, f"dead/{id}")}", {{ method: "DELETE" }}),
            fetch("{page(node, "tasks")}").then((reply) => reply.text()),
          ]);
          document.title = results.map((result) => result.status).join();
        </script>"""
    browser.open(foreign_site(attack))

    until(lambda: "trying" not in browser.script("return document.title"), 15)
    # What needs no answer was sent, and refused; what needs leave was not even sent, or not shown.
    tried = browser.script("return document.title")
    assert tried == "fulfilled,fulfilled,fulfilled,rejected,rejected"
    assert (status(node, id), queue(node, "five")["paused"]) == ("dead", False)
    assert any("frame-ancestors" in line or "X-Frame-Options" in line for line in browser.complaints(but=()))

    # A name that was made to point here is no way in either.
    browser.open(f"http://evil.example:{node.port}/")
    browser.wait_text("body", "evil.example")
    assert "urn:prefork-q:problem:misdirected" in browser.text()


def test_the_page_asks_seldom_and_not_at_all_while_it_is_hidden(browser: Browser, node: Node) -> None:
    def asked() -> list[float]:
        """When the numbers were asked for, ms."""
        entries = browser.script(
            "return performance.getEntriesByType('resource').map(one => [one.name, one.startTime])"
        )
        return [at for name, at in entries if name.endswith("/metrics")]

    browser.open(page(node))
    until(lambda: len(asked()) >= 3, 15)
    times = asked()
    assert min(later - earlier for earlier, later in pairwise(times)) > 1900

    browser.script(
        "Object.defineProperty(document, 'hidden', {get: () => window.isAway, configurable: true});"
        "window.isAway = true; document.dispatchEvent(new Event('visibilitychange'))"
    )
    before = len(asked())
    # Longer than between two sets of requests: one that was under way may still be counted.
    time.sleep(3)
    assert len(asked()) <= before + 1
    before = len(asked())
    browser.script("window.isAway = false; document.dispatchEvent(new Event('visibilitychange'))")
    until(lambda: len(asked()) > before, 1.5, "a request at once")


def test_a_token_is_asked_for_and_kept_in_the_tab_only(
    browser: Browser, handlers: str, tmp_path: Path
) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"looker read {TOKENS['read']}\nboss submit,read,admin {TOKENS['admin']}\n")
    guarded = Node(None, tmp_path / "node", target=handlers, workers=1, token_file=str(file))
    guarded.start(wait_ready=False)
    with contextlib.closing(guarded):
        guarded.wait_event("listening")
        boss = {"Authorization": f"Bearer {TOKENS['admin']}"}
        until(lambda: guarded.http("GET", "/readyz", headers=boss).status == 200, 20)
        guarded.http("POST", "/tasks", {"type": "wait_for", "payload": {"path": "/"}}, headers=boss)

        def paused() -> bool:
            return bool(guarded.http("GET", "/queues", headers=boss).json["queues"][0]["paused"])

        browser.open(page(guarded))
        browser.wait_text("#unlock", "This API asks for a token")
        assert browser.text("#overview") == ""

        browser.type("#token", "nobody-knows-this-token\n")
        browser.wait_text("#unlock", "does not know the token")
        browser.type("#token", TOKENS["read"] + "\n")
        browser.wait_text("#queues", "default")
        browser.click(f"#queues {row('default')} button")
        browser.wait_text("#told", "this needs the scope admin; the token looker has read")
        assert not paused()

        browser.click("#forget")
        browser.wait_text("#unlock", "This API asks for a token")
        browser.type("#token", TOKENS["admin"] + "\n")
        browser.click(f"#queues {row('default')} button")
        browser.wait_text("#told", "Queue default is paused")
        assert paused()
        assert browser.script("return [localStorage.length, document.cookie, sessionStorage.length]") == [
            0,
            "",
            1,
        ]

        file.write_text("other read somebody-elses-token\n")
        browser.wait_text("#unlock", "does not know the token any more")
        assert browser.script("return sessionStorage.length") == 0
        assert browser.text("#overview") == ""


def test_it_says_when_redis_or_the_api_is_away_and_goes_on_by_itself(
    browser: Browser, handlers: str, pytestconfig: pytest.Config, tmp_path: Path
) -> None:
    server = own_server(pytestconfig, tmp_path)
    with contextlib.ExitStack() as stack:
        stack.callback(server.stop)
        node = Node(server.url, tmp_path / "node", target=handlers, workers=1)
        stack.callback(node.close)
        node.start()
        node.submit("wait_for", {"path": "/"})
        browser.open(page(node))
        browser.wait_text("#queues", "default")

        server.kill()
        browser.wait_text("#notice", "Redis is away since")
        browser.wait_text("#state", "Redis is away")
        assert "default" in browser.text("#queues")
        browser.wait_text("#degraded", "redis: unreachable")
        server.start()
        browser.wait_text("#state", "Live")
        assert browser.text("#notice") == ""
        assert "Back after" in browser.text("#told")

        offline = {"offline": True, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
        browser.command("Network.enable")
        browser.command("Network.emulateNetworkConditions", **offline)
        browser.wait_text("#notice", "The API is away since")
        browser.command("Network.emulateNetworkConditions", **(offline | {"offline": False}))
        browser.wait_text("#state", "Live")
        assert browser.text("#notice") == ""


def own_server(config: pytest.Config, folder: Path) -> Server:
    """Start one server of the first kind: what the page shows does not depend on it."""
    flavour = flavours(config)[0]
    server: Server
    if flavour.binary:
        server = ProcessServer(flavour, folder / "server")
    else:
        server = ContainerServer(flavour, run=config.stash[RUN], is_persistent=True)
    server.start()
    return server
