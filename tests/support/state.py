"""What Redis holds, seeded and read by status: tests know the six statuses, this file knows the keys."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from itertools import count
from typing import Any

import redis

from prefork_q.ids import new_id
from prefork_q.keys import TABLE, Keys
from prefork_q.leases import ClaimRequest
from prefork_q.states import OPEN, Status

LEASE = 30.0
RETENTION_MS = 86_400_000
IN_HASH = ("body", "body2", "body3", "body4", "body5", "body6", "body7", "body8")
"""Fields of a task's hash that its payload lies in, in pieces of `PIECE` bytes; a longer one lies apart."""
PIECE = 64
APART = PIECE * len(IN_HASH)

_seqs = count(1)


def request(
    worker: str = "node.0.1",
    *,
    seq: int | None = None,
    room: int = 1,
    limit: int | None = None,
    budget: float = 0.0,
    queues: Iterable[str] = ("default",),
    paces: dict[str, float] | None = None,
    lease: float = LEASE,
) -> ClaimRequest:
    """What a worker asks for: `limit` is `room` and `seq` a new one unless given; times in seconds."""
    return ClaimRequest(
        worker, next(_seqs) if seq is None else seq, round(lease * 1000),
        room, room if limit is None else limit, round(budget * 1e6), tuple(queues),
        [(name.encode(), round(pace * 1e6)) for name, pace in (paces or {}).items()],
    )


class State:
    """One namespace of a server."""

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self._redis: Any = client
        self.keys = keys

    # -- given

    def seed(
        self,
        status: str,
        *,
        id: str | None = None,
        token: int | None = None,
        type: str = "thumbnail",
        queue: str = "default",
        body: bytes = b'{"width":128}',
        max_attempts: int = 3,
        attempts: int | None = None,
        crashes: int = 0,
        losses: int = 0,
        timeout: float | None = None,
        idempotency_key: str | None = None,
        due: float = 60.0,
        lease: float = LEASE,
        is_started: bool = False,
        is_cancel_requested: bool = False,
        unknown_since: float | None = None,
    ) -> str:
        """Store a task as the scripts leave it in this status; return its id.

        `due` and `lease` are seconds from now, `unknown_since` seconds ago.
        """
        id, status = id or new_id(), Status(status)
        now = self.now_ms()
        task: dict[str, Any] = {
            "status": status, "type": type, "max_attempts": max_attempts, "created_at": now, "queue": queue,
        }
        if attempts is None:
            attempts = 0 if status in (Status.PENDING, Status.DELAYED) else 1
        if status is not Status.PENDING or attempts or crashes or losses:
            task["attempts"] = attempts
        optional = {
            "token": token, "crashes": crashes, "losses": losses, "idem": idempotency_key,
            "timeout_ms": timeout and round(timeout * 1000), "cancel": int(is_cancel_requested),
            "unknown_at": unknown_since is not None and now - round(unknown_since * 1000),
        }
        task |= {name: value for name, value in optional.items() if value}
        if idempotency_key:
            task["extra"] = 1
        totals = Counter(submitted=1)
        with self._redis.pipeline() as pipe:
            if idempotency_key:
                pipe.set(self.keys(f"idem:{idempotency_key}"), f"{id} print")
            if len(body) > APART:
                task |= {"apart": 1, "extra": 1}
                pipe.set(self.keys.body(id), body)
            elif status is not Status.CANCELLED:
                task |= _pieces(body)
            match status:
                case Status.PENDING:
                    pipe.lpush(self.keys.pending(queue), id)
                case Status.PROCESSING:
                    task |= {"token": token or 1, "started_at": now}
                    if is_started:
                        task["started"] = task["token"]
                    pipe.zadd(self.keys("processing"), {id: now + round(lease * 1000)})
                case Status.DELAYED:
                    task["run_at"] = now + round(due * 1000)
                    pipe.zadd(self.keys("delayed"), {id: task["run_at"]})
                case Status.DEAD:
                    error = '{"type":"ValueError","message":"no"}'
                    task |= {"error": error, "started_at": now, "finished_at": now}
                    pipe.zadd(self.keys("dead"), {id: now})
                    totals["dead"] += 1
                case Status.SUCCEEDED:
                    task |= {"result": "null", "finished_at": now, "started_at": now}
                    totals["completed"] += 1
                case Status.CANCELLED:
                    task |= {"finished_at": now}
                    totals["cancelled"] += 1
            pipe.hset(self.keys.task(id), mapping=task)
            if status in (Status.SUCCEEDED, Status.CANCELLED):
                pipe.lpush(self.keys("recent"), id)
                pipe.pexpire(self.keys.task(id), RETENTION_MS)
                if "apart" in task:
                    pipe.pexpire(self.keys.body(id), RETENTION_MS)
                if idempotency_key:
                    pipe.pexpire(self.keys(f"idem:{idempotency_key}"), RETENTION_MS)
            pipe.hincrby(self.keys("queues"), queue, 1)
            for name, n in totals.items():
                pipe.hincrby(self.keys("totals"), name, n)
            pipe.execute()
        return id

    def age(self, id: str, by: float = 3_600.0) -> None:
        """Move a lease, a due time or a death back by so many seconds."""
        for name in ("processing", "delayed", "dead"):
            if self._redis.zscore(self.keys(name), id) is not None:
                self._redis.zincrby(self.keys(name), -by * 1000, id)

    def keepers_are_heard_of(self) -> None:
        """Have the keepers been there all the time, so that a reap does not hold off."""
        self._redis.hset(self.keys("reaper"), mapping={"last": self.now_ms(), "hold": 0})

    def keepers_fell_silent(self, ago: float) -> None:
        """Have the last word of any keeper been so many seconds ago."""
        self._redis.hset(self.keys("reaper"), mapping={"last": self.now_ms() - round(ago * 1000), "hold": 0})

    def time_passes(self, seconds: float) -> None:
        """Have the last word of any keeper been so much longer ago."""
        self._redis.hincrby(self.keys("reaper"), "last", -round(seconds * 1000))

    def hold_has_passed(self) -> None:
        """Let the time pass in which nobody reaps."""
        self._redis.hset(self.keys("reaper"), "hold", 0)

    def unknown_for(self, id: str, seconds: float) -> None:
        """Have the type of this task been unknown for so long."""
        self._redis.hset(self.keys.task(id), "unknown_at", self.now_ms() - round(seconds * 1000))

    def last_token(self, token: int) -> None:
        """Have this token been the last, as after a clock that was set back."""
        self._redis.set(self.keys("token"), token)

    def put_in_place_of(self, name: str, value: str = "not what belongs here") -> None:
        """Put a string where another type belongs: `pending:default`, `task:<id>`, ..."""
        self._redis.delete(self.keys(name))
        self._redis.set(self.keys(name), value)

    def lose(self, name: str) -> None:
        """Delete a key: `task:<id>`, `idem:<key>`, ..."""
        self._redis.delete(self.keys(name))

    def lose_body(self, id: str) -> None:
        """Have a task lose its payload."""
        self._redis.hdel(self.keys.task(id), *IN_HASH)
        self._redis.delete(self.keys.body(id))

    def spoil(self, id: str, name: str, value: str | None = None) -> None:
        """Have a field of a task's record be gone, or hold something else."""
        if value is None:
            self._redis.hdel(self.keys.task(id), name)
        else:
            self._redis.hset(self.keys.task(id), name, value)

    def list_again(self, id: str, queue: str = "default") -> None:
        """Put an id on a pending list once more."""
        self._redis.lpush(self.keys.pending(queue), id)

    # -- then

    def now_ms(self) -> int:
        seconds, microseconds = self._redis.time()
        return int(seconds * 1000 + microseconds // 1000)

    def task(self, id: str | bytes) -> dict[str, str]:
        """The fields of a task, {} if there is none."""
        return _decoded(self._redis.hgetall(self.keys.task(_text(id))))

    def status(self, id: str | bytes) -> Status | None:
        """The status of a task, None if there is none."""
        status = self.task(id).get("status")
        return Status(status) if status else None

    def body(self, id: str | bytes) -> bytes | None:
        """The payload of a task, None if there is none."""
        pieces = self._redis.hmget(self.keys.task(_text(id)), IN_HASH)
        return b"".join(filter(None, pieces)) or self._redis.get(self.keys.body(_text(id)))

    def is_body_apart(self, id: str) -> bool:
        """Whether the payload of a task has a key of its own."""
        return bool(self._redis.exists(self.keys.body(id)))

    def pending(self, queue: str = "default") -> list[str]:
        """The ids on a pending list, the next first; ghosts too."""
        ids = self._redis.lrange(self.keys.pending(queue), 0, -1)
        return [id.decode() for id in reversed(ids)]

    def ids(self, name: str) -> list[str]:
        """The ids of a sorted set (processing, delayed, dead, ...) or of `recent`, old ones first."""
        if name == "recent":
            return [id.decode() for id in reversed(self._redis.lrange(self.keys(name), 0, -1))]
        return [id.decode() for id in self._redis.zrange(self.keys(name), 0, -1)]

    def expiry(self, id: str) -> float:
        """Seconds that a lease has left."""
        return (self._redis.zscore(self.keys("processing"), id) - self.now_ms()) / 1000

    def due_in(self, id: str) -> float:
        """Seconds until a delayed task is due."""
        return (self._redis.zscore(self.keys("delayed"), id) - self.now_ms()) / 1000

    def total(self, name: str) -> int:
        """A counter since the namespace began."""
        return int(self._redis.hget(self.keys("totals"), name) or 0)

    def wakes(self, queue: str = "default") -> int:
        """Wake-up tokens of a queue."""
        return self._redis.llen(self.keys.wake(queue))

    def take_wake(self, queue: str = "default") -> None:
        """Take the wake-up tokens of a queue, as a worker does that they wake."""
        self._redis.delete(self.keys.wake(queue))

    def is_mover_told(self) -> bool:
        """Take the mover's token; tell whether there was one."""
        return bool(self._redis.delete(self.keys("mover")))

    def lifetimes(self, id: str, idempotency_key: str | None = None) -> list[float | None]:
        """Seconds to live of a task's hash, body if it lies apart, and idempotency key; None: for ever."""
        names = [self.keys.task(id)]
        names += [self.keys.body(id)] if self.is_body_apart(id) else []
        names += [self.keys(f"idem:{idempotency_key}")] if idempotency_key else []
        return [None if ms < 0 else ms / 1000 for ms in map(self._redis.pttl, names)]

    def snapshot(self, *, without: Iterable[str] = ()) -> dict[str, Any]:
        """Every key of the namespace but those named: its value, and whether it has a time to live."""
        left_out = {self.keys(name) for name in without}
        pattern = self.keys.root.replace("{", "\\{") + "*"
        found = sorted(self._redis.eval(SNAPSHOT, 0, pattern))
        return {
            name.decode().removeprefix(self.keys.root): (_plain(type_, value), lifetime >= 0)
            for name, type_, value, lifetime in found
            if name.decode() not in left_out
        }

    def assert_sums(self, snapshot: dict[str, Any] | None = None) -> None:
        """Assert that the numbers add up, and that every task is in the one place that its status names.

        The rest of what must always hold is asserted too: no time to live for what is open or dead, one
        for all that belongs to an ended task, no key that `keys.TABLE` does not know. Given a snapshot it
        looks at that.
        """
        snapshot = self.snapshot() if snapshot is None else snapshot
        for name, (value, has_ttl) in snapshot.items():
            rows = [row for row in TABLE if _matches(row.pattern, name)]
            assert len(rows) == 1, f"{name} is not in the table of keys"
            assert rows[0].type in ("any", _type_of(value)), f"{name} is a {_type_of(value)}"
            if rows[0].expires == "never":
                assert not has_ttl, f"{name} has a time to live"
            elif name.startswith(("rate:", "claim:")):
                assert has_ttl, f"{name} has no time to live"

        places: dict[str, list[str]] = {}
        for name, (value, _) in snapshot.items():
            if name.startswith("pending:") or name in ("processing", "delayed", "dead"):
                for id in value:
                    places.setdefault(id, []).append(name)
        counted: Counter[str] = Counter()
        ghosts: Counter[str] = Counter()
        for name, (task, _) in snapshot.items():
            if not name.startswith("task:") or not isinstance(task, dict):
                continue
            id = name.removeprefix("task:")
            status, queue = Status(task["status"]), task["queue"]
            counted[status] += 1
            wanted = {
                Status.PENDING: [f"pending:{queue}"], Status.PROCESSING: ["processing"],
                Status.DELAYED: ["delayed"], Status.DEAD: ["dead"],
            }.get(status, [])  # fmt: skip
            if "ghost" in task:
                assert status is Status.CANCELLED, f"{id} is {status} and a ghost"
                ghosts[queue] += 1
                wanted = [f"pending:{queue}"]
            assert places.pop(id, []) == wanted, f"{id} is {status}"
            is_kept = status in OPEN or status is Status.DEAD or "ghost" in task
            belongings = [name, f"body:{id}", f"idem:{task['idem']}" if "idem" in task else name]
            for belonging in belongings:
                if belonging in snapshot:
                    assert snapshot[belonging][1] is not is_kept, f"{belonging}: its task is {status}"
            if status in OPEN or status is Status.DEAD:
                own = "body" if "apart" not in task else f"body:{id}"
                assert own in task or own in snapshot, f"{id} is {status} and has no payload"
        assert not places, f"listed without a record: {places}"
        stored_ghosts = {name: int(n) for name, n in snapshot.get("ghosts", ({}, False))[0].items() if int(n)}
        assert stored_ghosts == dict(ghosts)

        totals = {name: int(n) for name, n in snapshot.get("totals", ({}, False))[0].items()}
        now = {status: counted[status] for status in (*OPEN, Status.DEAD)}
        ended = {name: totals.get(name, 0) for name in ("completed", "cancelled", "removed")}
        assert totals.get("submitted", 0) == sum(now.values()) + sum(ended.values()), (totals, now)


SNAPSHOT = """
local readers = {
  string = { "GET" }, hash = { "HGETALL" }, list = { "LRANGE", 0, -1 }, set = { "SMEMBERS" },
  zset = { "ZRANGE", 0, -1, "WITHSCORES" },
}
local found = {}
for _, name in ipairs(redis.call("KEYS", ARGV[1])) do
  local type_ = redis.call("TYPE", name).ok
  local reader = readers[type_]
  local value = redis.call(reader[1], name, unpack(reader, 2))
  found[#found + 1] = { name, type_, value, redis.call("PTTL", name) }
end
return found
"""
"""All keys of a pattern at one moment, so that what must always hold can be looked at while nodes work:
{name, type, value, ms to live}. That is 0 for what expires in this millisecond, -1 for what never does."""


def _pieces(body: bytes) -> dict[str, bytes]:
    return {
        name: body[n * PIECE : (n + 1) * PIECE]
        for n, name in enumerate(IN_HASH)
        if n == 0 or len(body) > n * PIECE
    }


def _plain(type_: bytes, value: Any) -> Any:
    match type_:
        case b"string":
            return value.decode("utf-8", "replace")
        case b"hash":
            return _decoded(dict(zip(value[::2], value[1::2], strict=True)))
        case b"list":
            return [one.decode() for one in value]
        case b"zset":
            return {one.decode(): float(score) for one, score in zip(value[::2], value[1::2], strict=True)}
        case _:
            return {one.decode() for one in value}


def _type_of(value: Any) -> str:
    if isinstance(value, dict):
        return "zset" if all(isinstance(one, float) for one in value.values()) else "hash"
    return {str: "string", list: "list", set: "set"}[type(value)]


def _matches(pattern: str, name: str) -> bool:
    return re.fullmatch(re.sub(r"<\w+>", ".+", pattern), name) is not None


def _decoded(raw: dict[bytes, bytes]) -> dict[str, str]:
    return {name.decode(): value.decode("utf-8", "replace") for name, value in raw.items()}


def _text(id: str | bytes) -> str:
    return id.decode() if isinstance(id, bytes) else id
