"""A node without a master: a scoreboard, processes that sleep in place of workers, and a log to read.

For tests of the keeper, which knows workers by the scoreboard and by what the kernel says of them.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from prefork_q.broker import Broker
from prefork_q.connection import connect
from prefork_q.events import Events, Sink
from prefork_q.ids import new_id
from prefork_q.inspector import Inspector
from prefork_q.ipc.scoreboard import Scoreboard, boot_time
from prefork_q.ipc.slot import WorkerSlot
from prefork_q.keys import Keys
from prefork_q.leases import ClaimRequest, Lease, Limits
from prefork_q.states import Status
from prefork_q.task import Submission, TaskRecord

TYPE = "thing"


class Stage:
    """The node. `close` ends its processes."""

    def __init__(self, url: str, keys: Keys, folder: Path, *, lease: float = 30.0, held: int = 16) -> None:
        self.url = url
        self.keys = keys
        self.lease = lease
        self.client = connect(url)
        self.broker = Broker(self.client, keys, Limits())
        self.inspector = Inspector(self.client, keys)
        self.board = Scoreboard(slots=4, threads=2, held=held)
        self.log = folder / "keeper.log"
        self.events = Events(Sink.file(self.log), format="json", level="debug", process={"role": "keeper"})
        self._processes: list[subprocess.Popen[bytes]] = []
        self._seq = 0

    # -- workers

    def worker(self, number: int = 0) -> WorkerSlot:
        """Fill a slot with a process that sleeps."""
        process = subprocess.Popen(["sleep", "1000"])
        self._processes.append(process)
        slot = self.board.worker(number)
        slot.open(f"stage.{number}.{process.pid}", 1)
        slot.register([TYPE], ["default"])
        slot.pid, slot.is_alive, slot.state = process.pid, True, "ready"
        slot.beat(boot_time())
        return slot

    def claim(self, slot: WorkerSlot, n: int = 1, *, age: float = 0.0) -> list[Lease]:
        """Claim for a worker and enter it in its slot, as if `age` seconds ago."""
        claimed_at = boot_time() - age
        self._seq += 1
        request = ClaimRequest(
            slot.incarnation, self._seq, round(self.lease * 1000), n, n, 10**9, ["default"],
            [(TYPE.encode(), 1)],
        )  # fmt: skip
        claimed = self.broker.claim(request)
        for index, lease in enumerate(claimed.leases, start=len(slot.holds())):
            slot.hold(index, lease.id, lease.token, claimed_at)
        return claimed.leases

    def run(self, slot: WorkerSlot, lease: Lease, *, processor: int = 0, age: float = 0.0) -> None:
        """Enter that a processor runs it, since `age` seconds."""
        slot.start(processor, lease.id, lease.type, lease.attempt, lease.token, boot_time() - age)

    # -- tasks

    def submit(self, n: int = 1, **options: Any) -> list[str]:
        ids = [new_id() for _ in range(n)]
        self.broker.submit([Submission(id, TYPE, b"{}", **options) for id in ids])
        return ids

    def task(self, id: str | bytes) -> TaskRecord:
        record = self.inspector.get(id if isinstance(id, str) else id.decode())
        assert record is not None
        return record

    def status(self, id: str | bytes) -> Status:
        return self.task(id).status

    def lease_left(self, id: bytes) -> float:
        """Seconds until the lease of a task expires on Redis's clock; negative once it has."""
        seconds, micros = self.client.time()  # type: ignore[misc]
        score: Any = self.client.zscore(self.keys("processing"), id)
        return float(score) / 1000 - seconds - micros / 1e6

    def expire(self, *ids: bytes) -> None:
        """Let leases have run out a second ago."""
        self._set("processing", ids, -1_000)

    def make_due(self, *ids: str) -> None:
        """Let delayed tasks be due since a second."""
        self._set("delayed", tuple(id.encode() for id in ids), -1_000)

    def keepers_were_seen(self, seconds_ago: float) -> None:
        """Set when any keeper was last heard of; it was a long calm time before that."""
        now: Any = self.client.time()
        at = int(now[0]) * 1000 - round(seconds_ago * 1000)
        self.client.hset(self.keys("reaper"), mapping={"last": at, "hold": 0})

    def _set(self, name: str, ids: tuple[bytes, ...], offset_ms: int) -> None:
        now: Any = self.client.time()
        at = int(now[0]) * 1000 + offset_ms
        self.client.zadd(self.keys(name), dict.fromkeys(ids, at), xx=True)

    # -- what was said

    def said(self, event: str) -> list[dict[str, Any]]:
        """Return the lines of one event."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [line for line in map(json.loads, lines) if line["event"] == event]

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait(10)
        self.events.sink.close()
        self.client.close()
