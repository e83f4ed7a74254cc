"""The installed program: `run` and its refusals, `ctl`, `check`, `api`, and how it is used from a shell."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from prefork_q.config import OPTIONS
from tests.support import leaks
from tests.support.node import HANDLERS, PROGRAM, Node
from tests.support.server import Server, free_port
from tests.support.until import until

Program = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def environ() -> dict[str, str]:
    """The environment without what would configure the program."""
    foreign = ("REDIS_URL", "STATE_DIRECTORY", "RUNTIME_DIRECTORY")
    return {k: v for k, v in os.environ.items() if k not in foreign and not k.startswith("PREFORK_Q_")}


@pytest.fixture
def program(tmp_path: Path, environ: dict[str, str]) -> Program:
    """Return a function that runs `prefork-q` in a folder of its own."""

    def call(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(PROGRAM), *arguments], cwd=tmp_path, env=environ | variables,
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    return call


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[Node]:
    """A node with the embedded server, its own folder as the current one."""
    node = Node(None, tmp_path / "node", embedded=True)
    try:
        yield node.start()
    finally:
        node.close()
        print(node.log_end())


# -- the program as such


def test_the_version_is_told(program: Program) -> None:
    ran = program("--version")

    assert ran.returncode == 0
    assert ran.stdout.startswith("prefork-q 0.")


def test_every_option_stands_in_the_help_of_run(program: Program) -> None:
    help_ = program("run", "--help").stdout

    assert [o.flag for o in OPTIONS if o.kind != "argument" and o.flag not in help_] == []


def test_an_unknown_command_or_option_is_wrong_usage(program: Program) -> None:
    assert program("nosuch").returncode == 2
    assert program("run", "--nosuch").returncode == 2
    assert program("run").returncode == 2


def test_asking_the_master_loads_no_redis_client_and_no_models() -> None:
    code = "import sys, prefork_q.cli.main, prefork_q.cli.ctl; print(*sys.modules)"

    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()

    assert {"redis", "pydantic", "rich", "bottle", "waitress", "psutil"} & set(loaded) == set()


def test_running_a_node_loads_no_redis_client_and_no_web_framework_into_the_master() -> None:
    code = "import sys, prefork_q.cli.main, prefork_q.cli.run; print(*sys.modules)"

    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()

    assert {"redis", "hiredis", "bottle", "waitress", "prometheus_client"} & set(loaded) == set()


# -- run, refused: exit code 78, and nothing is left


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nosuch_module:app"], "nosuch_module"),
        (["handlers.py:app"], "handlers.py"),
        ([HANDLERS, "--http", "0.0.0.0:8420"], "0.0.0.0"),
        ([HANDLERS, "--log-file", "/nosuch/folder/log"], "log_file"),
        ([HANDLERS, "--state-dir", "/proc/nosuch"], "state_dir"),
        ([HANDLERS, "--config", "nosuch.toml"], "nosuch.toml"),
        ([HANDLERS, "--config", "."], "configuration file ."),
        (["handlers"], "TARGET: 'handlers': write package.module:attribute"),
        ([HANDLERS, "--ctl-socket", "nosuch/run/ctl.sock"], "nosuch: make it, or choose another path"),
    ],
)
def test_a_wrong_configuration_is_refused(program: Program, arguments: list[str], told: str) -> None:
    ran = program("run", *arguments)

    assert ran.returncode == 78, ran.stderr
    assert told in ran.stderr
    assert ran.stdout == ""


@pytest.mark.parametrize(
    ("flag", "value", "told"),
    [
        ("http", "nonsense", "nonsense"),
        ("workers", "0", "greater than or equal to 1"),
        ("workers", "x", "valid integer"),
        ("lease", "soon", "write a duration"),
        ("queues", "a b", "a b"),
        ("redis-url", "http://:secret@localhost", "a Redis URL is"),
        ("preload", "abc", "abc"),
    ],
)
def test_a_wrong_value_is_wrong_usage_as_a_flag_and_wrong_configuration_elsewhere(
    program: Program, tmp_path: Path, flag: str, value: str, told: str
) -> None:
    ran = program("run", HANDLERS, f"--{flag}", value)

    assert (ran.returncode, ran.stdout) == (2, "")
    assert f"'--{flag}'" in ran.stderr
    assert told in ran.stderr
    assert "secret" not in ran.stderr
    key = flag.replace("-", "_")
    assert program("run", HANDLERS, **{f"PREFORK_Q_{key.upper()}": value}).returncode == 78
    (tmp_path / "wrong.toml").write_text(f'{key} = "{value}"\n')
    assert program("run", HANDLERS, "--config", "wrong.toml").returncode == 78


def test_an_unknown_key_in_the_file_is_refused_with_the_nearest_one(program: Program, tmp_path: Path) -> None:
    (tmp_path / "prefork-q.toml").write_text("worker = 3\n")

    ran = program("run", HANDLERS, "--config", "prefork-q.toml")

    assert ran.returncode == 78
    assert "workers" in ran.stderr


def test_an_address_in_use_is_refused(program: Program) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ran = program("run", HANDLERS, "--http", f"127.0.0.1:{taken.getsockname()[1]}")

    assert ran.returncode == 78
    assert "in use" in ran.stderr


def test_a_state_folder_in_use_is_refused(program: Program, embedded: Node) -> None:
    ran = program("run", HANDLERS, "--embedded", "--no-http", "--state-dir", str(embedded.state_dir))

    assert ran.returncode == 78
    assert "in use" in ran.stderr
    assert embedded.status()["state"] == "running"


# -- run, with the embedded server


def test_the_embedded_server_is_announced_with_its_folder(embedded: Node) -> None:
    (event,) = embedded.events("embedded_server")

    assert event["state_dir"] == str(embedded.state_dir)
    assert event["level"] == "warning"


def test_commands_reach_the_embedded_server_through_the_state_folder(embedded: Node) -> None:
    folder = ["--state-dir", str(embedded.state_dir)]

    ran = embedded.cli("task", "submit", "add", '{"a": 1, "b": 2}', "--wait", *folder)
    listed = embedded.cli("task", "list", "--json", *folder)

    assert (ran.returncode, ran.stdout.strip()) == (0, "3"), ran.stderr
    assert [task["result"] for task in json.loads(listed.stdout)["tasks"]] == [3]


def test_what_the_api_and_the_command_line_say_of_a_task_is_the_same(embedded: Node) -> None:
    id = embedded.submit("add", {"a": 1})
    said = embedded.ended(id)

    shown = embedded.cli("task", "show", id, "--json", "--state-dir", str(embedded.state_dir))

    assert json.loads(shown.stdout) == said


def test_what_the_api_and_the_command_line_say_of_queues_is_the_same(embedded: Node) -> None:
    embedded.ended(embedded.submit("add", {"a": 1}))
    said = embedded.http("GET", "/queues").json

    listed = embedded.cli("queue", "list", "--json", "--state-dir", str(embedded.state_dir))

    assert json.loads(listed.stdout) == said
    assert said["queues"][0]["oldest_pending_age_s"] == 0.0


def test_a_command_in_a_folder_without_a_service_says_so(program: Program, tmp_path: Path) -> None:
    for command in ("task list", "queue list", "task submit add", "dead list"):
        ran = program(*command.split())

        assert (ran.returncode, ran.stdout) == (69, "")
        assert f"no service runs with the state folder {tmp_path}/.prefork-q; start" in ran.stderr
        assert "redis.sock" not in ran.stderr


def test_tasks_survive_a_restart(embedded: Node) -> None:
    id = embedded.submit("add", {"a": 1}, delay_s=3600)
    assert embedded.stop() == 0

    embedded.start()

    assert embedded.task(id)["status"] == "delayed"


def test_the_api_listens_on_a_unix_socket_that_goes_with_the_node(tmp_path: Path) -> None:
    path = tmp_path / "api.sock"
    node = Node(None, tmp_path / "node", embedded=True, http=f"unix:{path}")
    try:
        node.start(wait_ready=False)
        until(lambda: answer_at(path, "/healthz").startswith(b"HTTP/1.1 200"), 20)
        assert path.stat().st_mode & 0o777 == 0o660
        assert node.stop() == 0
        assert not path.exists()
    finally:
        node.close()


def answer_at(path: Path, target: str) -> bytes:
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(str(path))
        except OSError:
            return b""
        connection.sendall(f"GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        return connection.recv(4096)


# -- ctl


def test_status_of_a_sound_node_is_zero_and_for_people_and_programs(embedded: Node) -> None:
    plain, as_json_, check = (embedded.cli("ctl", "status", *more) for more in ([], ["--json"], ["--check"]))

    assert [ran.returncode for ran in (plain, as_json_, check)] == [0, 0, 0]
    assert "running" in plain.stdout
    assert check.stdout == ""
    status = json.loads(as_json_.stdout)
    assert (status["pid"], status["state"], status["degraded"]) == (embedded.pid, "running", [])
    assert {"template", "keeper", "store", "api"} == set(status["roles"])


def test_status_of_a_node_that_lacks_its_workers_is_one_and_says_so(program: Program, tmp_path: Path) -> None:
    handlers = tmp_path / "handlers.py"
    handlers.write_text(
        "import os\nfrom prefork_q import App\napp = App()\n"
        "@app.task\ndef nothing(): ...\n@app.on_worker_start\ndef die(): os._exit(3)\n"
    )
    node = Node(None, tmp_path / "node", embedded=True, target=f"{handlers}:app", workers=1)
    try:
        node.start(wait_ready=False)
        until(lambda: node.cli("ctl", "status").returncode != 3, 20)
        ran = until(
            lambda: (s := node.cli("ctl", "status", "--check")) and "died" in s.stdout and s, 20, every=0.2
        )
        assert ran.returncode == 1
        assert "0 of 1 ready" in ran.stdout
    finally:
        node.close()


def test_status_without_a_master_is_three(program: Program, tmp_path: Path) -> None:
    ran = program("ctl", "status")

    assert (ran.returncode, ran.stdout) == (3, "")
    assert "not running" in ran.stderr
    assert program("ctl", "ping").returncode == 69


def test_a_master_that_does_not_answer_keeps_nobody_waiting(embedded: Node) -> None:
    embedded.send(signal.SIGSTOP)
    try:
        began = time.monotonic()
        ran = embedded.cli("ctl", "status")
        took = time.monotonic() - began
    finally:
        embedded.send(signal.SIGCONT)

    assert ran.returncode == 75
    assert took < 5.0  # two seconds, and a start of the program on a busy machine


def test_the_socket_is_found_by_option_variable_and_folder(program: Program, embedded: Node) -> None:
    path = str(embedded.ctl_socket)

    assert program("ctl", "--socket", path, "ping").returncode == 0
    assert program("ctl", "ping", "--socket", path).returncode == 0
    assert program("ctl", "ping", PREFORK_Q_CTL_SOCKET=path).returncode == 0
    assert program("ctl", "ping", PREFORK_Q_STATE_DIR=str(embedded.state_dir)).returncode == 0
    assert program("ctl", "ping", STATE_DIRECTORY=str(embedded.state_dir)).returncode == 0
    assert program("ctl", "ping", RUNTIME_DIRECTORY=str(embedded.state_dir)).returncode == 0


def test_a_node_is_asked_although_its_file_is_broken(
    program: Program, embedded: Node, tmp_path: Path
) -> None:
    (tmp_path / "q.toml").write_text("lease = 'soon'")
    broken = {"PREFORK_Q_CONFIG": str(tmp_path / "q.toml")}

    ran = program("ctl", "status", **broken, RUNTIME_DIRECTORY=str(embedded.state_dir))
    assert (ran.returncode, ran.stderr) == (0, "")

    ran = program("ctl", "status", **broken)
    assert ran.returncode == 78
    assert "q.toml" in ran.stderr


def test_workers_and_metrics_are_listed(embedded: Node) -> None:
    embedded.ended(embedded.submit("add", {"a": 1}))

    assert [worker["state"] for worker in embedded.ctl("workers")] == ["ready", "ready"]
    assert embedded.ctl("metrics")["types"]["add"]["completed"] == 1
    assert embedded.cli("ctl", "workers").stdout.splitlines()[0].split()[0] == "WORKER"
    assert "add" in embedded.cli("ctl", "metrics").stdout


def test_a_running_task_is_shown_with_its_worker(embedded: Node) -> None:
    id = embedded.submit("sleep", {"seconds": 20})

    (running,) = until(lambda: [run for worker in embedded.ctl("workers") for run in worker["running"]], 10)

    assert (running["id"], running["type"], running["attempt"]) == (id, "sleep", 1)
    assert embedded.cli("task", "cancel", id, "--state-dir", str(embedded.state_dir)).returncode == 0


def test_explain_knows_the_live_workers(embedded: Node) -> None:
    folder = ["--json", "--state-dir", str(embedded.state_dir)]
    submit = ["task", "submit", "nosuch", *folder, "--queue", "nowhere"]
    id = json.loads(embedded.cli(*submit).stdout)["id"]

    def reasons() -> set[str]:
        found: list[dict[str, Any]] = json.loads(embedded.cli("task", "explain", id, *folder).stdout)[
            "reasons"
        ]
        return {reason["reason"] for reason in found}

    until(lambda: reasons() == {"unknown_type", "no_worker_for_queue"}, 15, every=0.3)


def test_explain_knows_that_the_node_is_quiet(embedded: Node) -> None:
    folder = ["--json", "--state-dir", str(embedded.state_dir)]

    def reasons(id: str) -> set[str]:
        explained = json.loads(embedded.cli("task", "explain", id, *folder).stdout)
        return {reason["reason"] for reason in explained["reasons"]}

    embedded.ctl("quiet")
    id = embedded.submit("add", {"a": 1, "b": 1})
    until(lambda: "quiet" in reasons(id), 15, every=0.3)
    embedded.ctl("resume")
    until(lambda: reasons(id) == {"succeeded"}, 15, every=0.3)


# -- check


def test_check_is_content_with_a_sound_node(embedded: Node) -> None:
    ran = embedded.cli("check", HANDLERS, "--json", "--state-dir", str(embedded.state_dir))

    said = json.loads(ran.stdout)
    assert (ran.returncode, said["ok"]) == (0, True), ran.stderr
    assert [check for check in said["checks"] if check["state"] != "ok"] == []


def test_check_knows_the_socket_that_a_killed_server_leaves(program: Program, tmp_path: Path) -> None:
    folder = tmp_path / ".prefork-q"
    folder.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(folder / "redis.sock"))

    ran = program("check", HANDLERS)
    assert ran.returncode == 0, ran.stderr
    assert "embedded, not running" in ran.stdout

    # Who holds the lock and does not answer is a server in trouble.
    with (folder / "store.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert program("check", HANDLERS).returncode == 69
    assert program("check", HANDLERS).returncode == 0


def test_check_warns_of_a_server_that_forgets(program: Program, new_server: Callable[..., Server]) -> None:
    server = new_server(is_persistent=False, arguments=["--maxmemory-policy", "allkeys-lru"])

    ran = program("check", HANDLERS, "--redis-url", server.url)

    assert ran.returncode == 0
    assert "allkeys-lru" in ran.stdout
    assert "appendonly" in ran.stdout


def test_check_and_the_start_warn_of_a_short_lease(
    program: Program, start_node: Callable[..., Node]
) -> None:
    ran = program("check", "--config-only", PREFORK_Q_LEASE="17s")
    assert ran.returncode == 0
    assert "a lease of 17 s is short" in ran.stdout
    assert "a lease of" not in program("check", "--config-only", PREFORK_Q_LEASE="18s").stdout

    short = start_node(workers=1, lease="17s", no_http=True)
    assert "take 18 s or more" in short.wait_event("lease_short", level="warning")["reason"]
    enough = start_node(workers=1, lease="18s", no_http=True)
    assert not enough.events("lease_short")


@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        ("TARGET", "handlers", "PREFORK_Q_TARGET: 'handlers': write package.module:attribute"),
        ("LOG_FILE", "/nosuch/log", "log_file '/nosuch/log': there is no folder /nosuch"),
        ("STATE_DIR", "/dev/null/state", "state_dir '/dev/null/state': Not a directory: /dev/null"),
        ("CTL_SOCKET", "/nosuch/run/ctl.sock", "ctl_socket: there is no folder /nosuch"),
    ],
)
def test_check_of_the_configuration_alone_refuses_what_run_refuses(
    program: Program, variable: str, value: str, told: str
) -> None:
    for command in (["check", "--config-only"], ["run", *([HANDLERS] if variable != "TARGET" else [])]):
        ran = program(*command, **{f"PREFORK_Q_{variable}": value})

        assert ran.returncode == 78
        assert told in ran.stdout + ran.stderr
    assert not Path("/nosuch").exists()


def test_check_warns_of_threads_that_the_import_leaves(program: Program, tmp_path: Path) -> None:
    (tmp_path / "busy.py").write_text(
        "import threading\nfrom prefork_q import App\napp = App()\n@app.task\ndef nothing(): ...\n"
        "threading.Thread(target=threading.Event().wait, name='collector', daemon=True).start()\n"
    )

    ran = program("check", "busy:app")

    assert ran.returncode == 0
    assert "collector" in ran.stdout


THREAD = "import threading, time\nthreading.Thread(target=time.sleep, args=(300,), name='sleeper').start()\n"


def test_threads_that_the_import_leaves_keep_no_command_from_ending(program: Program, tmp_path: Path) -> None:
    write_handlers(tmp_path, THREAD)

    checked = program("check", "handlers:app")
    described = program("openapi", "handlers:app")

    assert (checked.returncode, "sleeper" in checked.stdout) == (0, True)
    assert described.returncode == 0
    assert "task.nothing" in json.loads(described.stdout)["components"]["schemas"]


def test_what_the_import_prints_is_no_data(program: Program, tmp_path: Path) -> None:
    write_handlers(tmp_path, "import os\nprint('printed')\nos.system('echo echoed')\n")

    for arguments in (("check", "--json"), ("openapi",)):
        ran = program(*arguments, "handlers:app")

        assert ran.returncode == 0
        assert json.loads(ran.stdout)
        assert {"printed", "echoed"} <= set(ran.stderr.split())


@pytest.mark.parametrize(
    ("end", "told"),
    [
        ("os._exit(0)", "exited 0"),
        ("os._exit(3)", "exited 3"),
        ("os.kill(os.getpid(), 11)", "killed by signal 11 (SIGSEGV)"),
    ],
)
def test_an_import_that_ends_the_process_is_told(
    program: Program, tmp_path: Path, end: str, told: str
) -> None:
    write_handlers(tmp_path, f"import os\n{end}\n")
    told = f"importing the handlers ended the process: {told}"

    checked = program("check", "handlers:app", "--json")
    assert checked.returncode == 78
    (failed,) = [one for one in json.loads(checked.stdout)["checks"] if one["state"] == "failed"]
    assert (failed["subject"], failed["detail"]) == ("handlers", told)
    assert f"failed   handlers       {told}" in program("check", "handlers:app").stdout
    described = program("openapi", "handlers:app")
    assert (described.returncode, described.stdout, told in described.stderr) == (78, "", True)


def test_check_works_where_ended_children_are_ignored(tmp_path: Path, environ: dict[str, str]) -> None:
    write_handlers(tmp_path, "")
    script = f"trap '' CHLD; exec {shlex.quote(str(PROGRAM))} check handlers:app"

    ran = subprocess.run(
        ["sh", "-c", script], cwd=tmp_path, env=environ,
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip

    assert (ran.returncode, "nothing" in ran.stdout) == (0, True), ran


@pytest.mark.parametrize("command", ["check", "openapi"])
def test_an_import_that_hangs_ends_with_the_command(
    environ: dict[str, str], tmp_path: Path, command: str
) -> None:
    write_handlers(tmp_path, "import time\nopen('begun', 'w').close()\ntime.sleep(300)\n")
    process = subprocess.Popen(
        [str(PROGRAM), command, "handlers:app"], cwd=tmp_path, env=environ, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    leaks.watch_session(process.pid)
    try:
        until((tmp_path / "begun").exists, 15, "the import")
        (child,) = psutil.Process(process.pid).children()
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130
    until(lambda: not child.is_running(), 5, "the end of the import")


def write_handlers(folder: Path, first: str) -> None:
    (folder / "handlers.py").write_text(
        f"{first}from prefork_q import App\napp = App()\n@app.task\ndef nothing(): ...\n"
    )


def test_check_warns_of_handlers_whose_queue_nobody_works_on(program: Program, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(
        "from prefork_q import App\napp = App()\n@app.task('fetch', queue='slow')\ndef fetch(): ...\n"
    )

    ran = program("check", "slow:app")
    assert ran.returncode == 0
    assert re.search(r"^warning  handlers .* fetch \(slow\): add them to --queues", ran.stdout, re.MULTILINE)
    assert "warning" not in program("check", "slow:app", "--queues", "default,slow").stdout


def test_check_shows_a_traceback_as_text(program: Program, tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text("from prefork_q import App\napp = App(\n")

    ran = program("check", "wrong:app")

    assert ran.returncode == 78
    assert "\n    app = App(\n" in ran.stdout
    assert "\\n" not in ran.stdout


def test_check_tells_handlers_from_servers_by_its_exit_code(program: Program) -> None:
    nobody = f"redis://127.0.0.1:{free_port()}"

    assert program("check", "nosuch:app").returncode == 78
    assert program("check", HANDLERS, "--redis-url", nobody).returncode == 69
    assert program("check", "nosuch:app", "--redis-url", nobody).returncode == 78


# -- api


def test_the_api_alone_takes_tasks_and_stops_on_term(
    embedded: Node, environ: dict[str, str], tmp_path: Path
) -> None:
    command = [str(PROGRAM), "api", HANDLERS, "--state-dir", str(embedded.state_dir), "--http", "127.0.0.1:0"]
    log = tmp_path / "api.log"
    with log.open("wb") as file:
        process = subprocess.Popen(command, env=environ, stderr=file, start_new_session=True)
    leaks.watch_session(process.pid)
    try:
        line = until(lambda: [text for text in log.read_text().splitlines() if '"listening"' in text], 15)[0]
        embedded.port, first = int(json.loads(line)["http"].rpartition(":")[2]), embedded.port
        id = until(lambda: submitted(embedded), 10)
        assert embedded.ended(id)["result"] == 3
        embedded.port = first
        # Arguments may hold a password.
        assert [word for word in psutil.Process(process.pid).cmdline() if word] == ["prefork-q: api"]
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0


def test_threads_that_the_import_leaves_keep_the_api_from_no_stop(
    embedded: Node, environ: dict[str, str], tmp_path: Path
) -> None:
    write_handlers(tmp_path, THREAD)
    place = ("--state-dir", str(embedded.state_dir), "--http", "127.0.0.1:0", "--log-file", "api.log")
    process = subprocess.Popen(
        [str(PROGRAM), "api", "handlers:app", *place], cwd=tmp_path, env=environ, start_new_session=True
    )
    leaks.watch_session(process.pid)
    log = tmp_path / "api.log"
    try:
        until(lambda: log.exists() and "listening" in log.read_text(), 15, "the API")
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            assert process.wait(10) == 0
        finally:
            process.kill()
    assert '"stopped"' in log.read_text()


def submitted(node: Node) -> str | None:
    try:
        return node.submit("add", {"a": 1, "b": 2})
    except OSError:
        return None


def test_what_another_version_has_stored_ends_a_node_at_its_start(
    program: Program, new_server: Callable[..., Server], tmp_path: Path
) -> None:
    server = new_server(is_persistent=True)
    server.client().set("pq:{default}:layout", "2")
    told = "has layout 2, and this version of prefork-q knows 1"

    checked = program("check", HANDLERS, "--redis-url", server.url)
    assert (checked.returncode, told in checked.stdout) == (78, True)
    ways: tuple[dict[str, Any], ...] = ({}, {"workers": None, "no_fork": True})
    for options in ways:
        node = Node(server.url, tmp_path / f"node-{len(options)}", **options)
        try:
            node.start(wait_ready=False)
            assert node.wait(20) == 78
            assert told in node.log()
            assert node.leftovers() == []
        finally:
            node.close()

    # A worker may have asked for tasks before that.
    left = {bytes(key) for key in server.client().keys("*") if b":claim:" not in key}
    assert left == {b"pq:{default}:layout"}
