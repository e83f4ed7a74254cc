"""What is measured of the project alone: recovery, start, the drain against the backlog."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

from prefork_q.control.client import ask
from prefork_q.errors import PreforkQError
from tests.bench import limit, measures
from tests.bench.contenders import CONTENDERS
from tests.bench.stand import ROOT, Stand
from tests.support.server import dies_with_its_parent, free_port

PROGRAM = Path(sys.executable).with_name("prefork-q")
SHIPPED = CONTENDERS[0]


def backlog(stand: Stand, tasks: int, *, seconds: float) -> dict[str, float]:
    """The drain rate with so many tasks pending, looked at for at most so many seconds."""
    stand.clean()
    limit.fill_bare(stand, tasks)
    found = measures.drain(stand, SHIPPED, tasks, most=seconds, is_filled=True)
    memory = stand.redis.info("memory")["used_memory"]
    return {"rate": found["rate"], "steady": found["steady"], "redis_us": found["redis_us"], "memory": memory}


def recovery(stand: Stand, rounds: int) -> dict[str, float]:
    """Milliseconds from the SIGKILL of a worker to the next start of the task that it ran."""
    took = []
    for _ in range(rounds):
        stand.clean()
        with stand.running(SHIPPED) as workers:
            measures._warm(stand, SHIPPED, workers)
            stand.drive(SHIPPED, "fill", "hang", "1", "one")
            measures.until_lines(stand, 1)
            pid = int(stand.lines()[0][0])
            killed = time.monotonic()
            os.kill(pid, signal.SIGKILL)
            measures.until_lines(stand, 2)
            took.append((stand.lines()[1][1] - killed) * 1e3)
    return {"p50": statistics.median(took), "low": min(took), "high": max(took), "n": rounds}


def start(folder: Path, *, asks: int) -> dict[str, float]:
    """Seconds until `prefork-q run` with its embedded server is ready; ms until `ctl status` has answered."""
    own = folder / "start"
    shutil.rmtree(own, ignore_errors=True)
    own.mkdir()
    (own / "handlers.py").write_text(
        "from prefork_q import App\n\napp = App()\n\n\n@app.task('noop')\ndef noop() -> None: ...\n"
    )
    socket = own / "ctl.sock"
    command = [
        *dies_with_its_parent("TERM"),
        str(PROGRAM),
        "run",
        "handlers:app",
        "--embedded",
        "--workers",
        "2",
        "--http",
        f"127.0.0.1:{free_port()}",
        "--state-dir",
        str(own / "state"),
        "--ctl-socket",
        str(socket),
        "--log-file",
        str(own / "log"),
    ]
    environ = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("PREFORK_Q", "REDIS"))},
        "PYTHONPATH": str(ROOT),
    }
    started = time.monotonic()
    process = subprocess.Popen(command, cwd=own, env=environ, stderr=subprocess.DEVNULL)
    try:
        while not is_ready(socket):
            if process.poll() is not None or time.monotonic() - started > 30:
                raise RuntimeError("the node did not start:\n" + (own / "log").read_text()[-2000:])
            time.sleep(0.005)
        ready = time.monotonic() - started
        took = []
        for _ in range(asks):
            began = time.perf_counter()
            subprocess.run(
                [str(PROGRAM), "ctl", "status", "--socket", str(socket)],
                env=environ,
                cwd=own,
                check=False,
                stdout=subprocess.DEVNULL,
            )
            took.append((time.perf_counter() - began) * 1e3)
        began = time.perf_counter()
        for _ in range(5):
            subprocess.run([sys.executable, "-c", "pass"], check=True)
        bare = (time.perf_counter() - began) / 5 * 1e3
        return {"ready": ready, "status": statistics.median(took), "python": bare}
    finally:
        process.terminate()
        process.wait(15)


def is_ready(socket: Path) -> bool:
    """Whether the node runs and every process of it is ready."""
    with contextlib.suppress(PreforkQError):
        status = ask(socket, "status", timeout=1)
        roles = [
            one for role in status["roles"].values() for one in (role if isinstance(role, list) else [role])
        ]
        return status["state"] == "running" and all(
            one["state"] == "ready" for one in (*status["workers"], *roles)
        )
    return False
