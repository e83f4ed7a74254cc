"""The limit, measured in the same run: what is left when our layers are taken away.

- A bare claim-and-complete loop in Python: redis-py, hiredis and orjson, and the two shortest scripts that
  claim with a status and a lease, and complete with a result. `batch` tasks a call; the completion of one
  batch and the claim of the next travel in one pipeline.
- Our own scripts driven by a bare client: `submit` and `commit`, with nothing around them.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from typing import Any

import orjson
import redis as library

from prefork_q.broker import submit_arguments
from prefork_q.connection import connect
from prefork_q.ids import new_id
from prefork_q.keys import Keys
from prefork_q.leases import ClaimRequest, Limits, Settlement, commit_arguments, grouped, parse_claimed
from prefork_q.scripts import scripts
from prefork_q.task import Submission
from tests.bench import measures
from tests.bench.stand import Stand, read_cpu

CLAIM = """
local ids = redis.call("RPOP", KEYS[1], ARGV[1])
if not ids then return {} end
local answer, leases = {}, {}
for i, id in ipairs(ids) do
  redis.call("HSET", "b:" .. id, "status", "processing")
  leases[2 * i - 1], leases[2 * i] = ARGV[2], id
  answer[2 * i - 1], answer[2 * i] = id, redis.call("HGET", "b:" .. id, "body")
end
redis.call("ZADD", KEYS[2], unpack(leases))
return answer
"""
COMPLETE = """
redis.call("ZREM", KEYS[1], unpack(ARGV, 2))
for i = 2, #ARGV do redis.call("HSET", "b:" .. ARGV[i], "status", "succeeded", "result", ARGV[1]) end
return #ARGV - 1
"""
SUBMIT = """
local ids = {}
for i = 2, #ARGV do
  redis.call("HSET", "b:" .. ARGV[i], "status", "pending", "body", ARGV[1])
  ids[i - 1] = ARGV[i]
end
return redis.call("LPUSH", KEYS[1], unpack(ids))
"""
BODY = orjson.dumps({"text": "x" * 89})


def _bare(url: str) -> Any:
    return library.Redis.from_url(url, protocol=2)


def _bare_loop(url: str, batch: int, begin: Any, end: Any, used: Any) -> None:
    client = _bare(url)
    claim, complete = client.script_load(CLAIM), client.script_load(COMPLETE)
    client.ping()
    begin.wait()
    cpu = time.process_time()
    done: list[bytes] = []
    expiry = int(time.time() * 1000) + 30_000
    while True:
        pipe = client.pipeline(transaction=False)
        if done:
            pipe.evalsha(complete, 1, "leases", orjson.dumps(None), *done)
        pipe.evalsha(claim, 2, "pending", "leases", batch, expiry)
        answer = pipe.execute()[-1]
        if not answer:
            break
        for body in answer[1::2]:
            orjson.loads(body)
        done = answer[0::2]
    used.put(time.process_time() - cpu)
    end.wait()


def _script_loop(url: str, batch: int, begin: Any, end: Any, used: Any) -> None:
    link = connect(url)
    keys, limits = Keys("default"), Limits()
    commit = scripts()["commit"]
    worker = new_id()
    link.execute_command(*commit.by_source(keys.root, *commit_arguments([], _request(worker, 1, 0), limits)))
    begin.wait()
    cpu = time.process_time()
    seq, done = 1, []
    while True:
        seq += 1
        arguments = commit_arguments(grouped(done), _request(worker, seq, batch), limits)
        _, answer = link.execute_command(*commit.by_sha(keys.root, *arguments))
        leases = parse_claimed(answer).leases
        if not leases:
            break
        done = [Settlement("complete", one.id, one.token, 0, b"null") for one in leases]
    used.put(time.process_time() - cpu)
    end.wait()


def _request(worker: str, seq: int, batch: int) -> ClaimRequest:
    return ClaimRequest(worker, seq, 30_000, batch, batch, 0, ["default"])


def _run(stand: Stand, loop: Callable[..., None], batch: int, processes: int, tasks: int) -> dict[str, float]:
    """Run the loop in so many processes and return the rate of all, from the same start to the last end."""
    context = multiprocessing.get_context("spawn")
    begin, end = context.Barrier(processes + 1), context.Barrier(processes + 1)
    used = context.SimpleQueue()
    arguments = (stand.url, batch, begin, end, used)
    running = [context.Process(target=loop, args=arguments) for _ in range(processes)]
    for process in running:
        process.start()
    begin.wait(60)
    cpu, started = read_cpu(stand.redis), time.perf_counter()
    end.wait(120)
    spent = time.perf_counter() - started
    redis_us = (read_cpu(stand.redis) - cpu) * 1e6 / tasks
    client_us = sum(used.get() for _ in running) * 1e6 / tasks
    found = {
        "rate": tasks / spent,
        "worker_us": client_us,
        "redis_us": redis_us,
        "of_two_cores": measures.CORES * 1e6 / (client_us + redis_us),
    }
    for process in running:
        process.join(10)
    return found


def bare_loop(stand: Stand, batch: int, processes: int, tasks: int) -> dict[str, float]:
    stand.clean()
    client = _bare(stand.url)
    submit = client.script_load(SUBMIT)
    for start in range(0, tasks, 500):
        client.evalsha(submit, 1, "pending", BODY, *(new_id() for _ in range(min(500, tasks - start))))
    return _run(stand, _bare_loop, batch, processes, tasks)


def script_loop(stand: Stand, batch: int, processes: int, tasks: int) -> dict[str, float]:
    stand.clean()
    fill_bare(stand, tasks)
    return _run(stand, _script_loop, batch, processes, tasks)


def _submit_arguments(n: int) -> list[object]:
    return submit_arguments(Submission(new_id(), "noop", BODY) for _ in range(n))


def fill_bare(stand: Stand, tasks: int) -> None:
    """Submit with the project's script and nothing around it."""
    submit, root = scripts()["submit"], Keys("default").root
    stand.redis.execute_command(*submit.by_source(root, *_submit_arguments(1)))
    for start in range(1, tasks, 500):
        stand.redis.execute_command(*submit.by_sha(root, *_submit_arguments(min(500, tasks - start))))


def submission(stand: Stand, *, one: int, bulk: int) -> dict[str, float]:
    """Tasks a second through bare EVALSHAs of the same script: one, and 500 a call."""
    stand.clean()
    client, submit, root = _bare(stand.url), scripts()["submit"], Keys("default").root
    client.execute_command(*submit.by_source(root, *_submit_arguments(1)))
    calls = [submit.by_sha(root, *_submit_arguments(1)) for _ in range(one)]
    started = time.perf_counter()
    for call in calls:
        client.execute_command(*call)
    found = {"one_by_one": one / (time.perf_counter() - started)}
    calls = [submit.by_sha(root, *_submit_arguments(500)) for _ in range(bulk // 500)]
    started = time.perf_counter()
    for call in calls:
        client.execute_command(*call)
    found["bulk"] = len(calls) * 500 / (time.perf_counter() - started)
    return found


def ping(stand: Stand, n: int) -> dict[str, float]:
    """Round trips a second of the smallest command."""
    client = _bare(stand.url)
    client.ping()
    started = time.perf_counter()
    for _ in range(n):
        client.execute_command("PING")
    return {"rate": n / (time.perf_counter() - started)}
