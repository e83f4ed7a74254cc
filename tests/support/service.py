"""prefork-q as a service of a systemd in a container: installed from the wheel, driven by `systemctl`."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from tests.support.systemd import ROOT, System
from tests.support.until import until

PROGRAM = "/opt/prefork-q/bin/prefork-q"
HANDLERS = "/opt/prefork-q/app/handlers.py"
CONFIG = "/etc/prefork-q/config.toml"
DROP_IN = "/etc/systemd/system/prefork-q.service.d/test.conf"
DRAIN = 3.0

OWN_HANDLERS = '''

import os
import subprocess
import time

VERSION = "old"


@app.task("nap")
def nap(seconds: float) -> str:
    time.sleep(seconds)
    return VERSION


@app.task("eat", max_attempts=1)
def eat(mebibytes: int) -> int:
    return len(b"x" * (mebibytes << 20))


@app.task("look")
def look() -> dict[str, Any]:
    """What a handler sees of where it runs."""
    with open("/proc/self/status") as status:
        fields = dict(line.split(":", 1) for line in status)
    return {
        "uid": os.getuid(),
        "environment": sorted(os.environ),
        "no_new_privileges": int(fields["NoNewPrivs"]),
        "capabilities": fields["CapBnd"].strip(),
        "writable": [path for path in ("/etc", "/usr", "/opt/prefork-q") if os.access(path, os.W_OK)],
        "program": subprocess.run(["true"], check=False).returncode,
    }
'''
"""After the demonstration's own."""

SETTINGS = f"""
target = "{HANDLERS}:app"
redis_url = "redis://127.0.0.1:6379/0"
workers = 2
lease = "3s"
drain_timeout = "{DRAIN:g}s"
max_crashes = 1
http = ["fd:http"]
"""

SETUP = f"""
set -e
{PROGRAM} systemd
systemd-sysusers
systemd-tmpfiles --create
redis-cli CONFIG SET appendonly yes >/dev/null
systemctl daemon-reload
systemctl enable prefork-q.socket prefork-q.service 2>&1
"""

CLEAN = """
systemctl stop 'prefork-q*' 2>/dev/null
rm -rf /etc/systemd/system/prefork-q*.service.d /etc/credstore/prefork-q.* /etc/prefork-q/[!c]*.toml
redis-cli FLUSHALL >/dev/null
systemctl daemon-reload
systemctl reset-failed
journalctl --rotate --vacuum-time=1s >/dev/null 2>&1
true
"""


class Service:
    """One container's prefork-q."""

    def __init__(self, system: System) -> None:
        self.system = system
        self.sh = system.sh

    def set_up(self) -> None:
        """Write code, configuration and units as they are before each test; the service does not run."""
        self.write_handlers(OWN_HANDLERS)
        self.system.put(CONFIG, SETTINGS, mode="640")
        self.sh(CLEAN)
        self.sh(SETUP)

    def write_handlers(self, own: str) -> None:
        example = (ROOT / "docs/examples/compress.py").read_text()
        self.system.put(HANDLERS, example + own)

    def configure(self, **settings: object) -> None:
        """Add options to the configuration."""
        lines = "".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items())
        self.system.put(CONFIG, SETTINGS + lines, mode="640")

    def drop_in(self, text: str) -> None:
        """Change the unit as an administrator does."""
        self.system.put(DROP_IN, text)
        self.sh("systemctl daemon-reload")

    def start(self) -> float:
        """Start it; return how long that took."""
        began = time.monotonic()
        self.sh("systemctl start prefork-q.socket prefork-q.service", timeout=60)
        seconds = time.monotonic() - began
        assert self.state == "active"
        return seconds

    @property
    def state(self) -> str:
        return self.system.run("systemctl is-active prefork-q").stdout.strip()

    @property
    def sentence(self) -> str:
        return self.system.show("prefork-q", "StatusText")

    @property
    def master(self) -> int:
        return int(self.system.show("prefork-q", "MainPID"))

    def pids(self) -> set[int]:
        """Return the processes of the service, as its cgroup has them."""
        found = self.system.run("ps -eo pid=,cgroup= | grep '/prefork-q.service' | awk '{print $1}'")
        return {int(pid) for pid in found.stdout.split()}

    def submit(self, type: str, payloads: list[dict[str, Any]], **options: Any) -> list[str]:
        """Submit tasks; return their ids."""
        tasks = [{"type": type, "payload": payload, **options} for payload in payloads]
        answer = self.system.http("POST", "/tasks/batch", {"tasks": tasks})
        return [task["id"] for task in answer["tasks"]]

    def task(self, id: str, *, wait: int = 0) -> dict[str, Any]:
        answer: dict[str, Any] = self.system.http("GET", f"/tasks/{id}?wait={wait}")
        return answer

    def sums(self) -> dict[str, int]:
        """Return what the tasks came to, in the whole namespace."""
        text = self.sh("curl --silent --fail -H 'Accept: application/json' http://127.0.0.1:8420/metrics")
        numbers: dict[str, int] = json.loads(text)
        return numbers

    def until_all_done(self, tasks: int, timeout: float = 30) -> None:
        def are_done() -> bool:
            sums = self.sums()
            return bool(sums["completed_total"] + sums["dead"] >= tasks)

        until(are_done, timeout, f"the end of {tasks} tasks", every=0.2)

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return the records of one event in the journal."""
        return self.system.journal("-u", "prefork-q", f"PREFORKQ_EVENT={name}")


def script(name: str) -> Path:
    return Path(__file__).parent / "in_container" / name
