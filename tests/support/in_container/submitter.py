"""Submits tasks over HTTP at a steady rate, each on a connection of its own; runs in the container.

Prints a line when it begins, and one of JSON at the end: how many were accepted, and what went wrong.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import time

RATE, SECONDS = float(sys.argv[1]), float(sys.argv[2])
BODY = json.dumps({"type": "nap", "payload": {"seconds": 0.001}}).encode()
REQUEST = (
    b"POST /tasks HTTP/1.1\r\nHost: 127.0.0.1:8420\r\nContent-Type: application/json\r\n"
    b"Connection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(BODY), BODY)
)
THREADS = 16

accepted: list[str] = []
wrong: list[str] = []
slowest = [0.0]
turn = iter(range(int(RATE * SECONDS)))
lock = threading.Lock()
began = time.monotonic()


def work() -> None:
    while True:
        with lock:
            number = next(turn, None)
        if number is None:
            return
        time.sleep(max(0.0, began + number / RATE - time.monotonic()))
        at = time.monotonic()
        try:
            answer = ask()
        except OSError as error:
            wrong.append(f"{number}: {type(error).__name__}: {error}")
            continue
        head, _, body = answer.partition(b"\r\n\r\n")
        if b" 202 " in head.partition(b"\r\n")[0]:
            accepted.append(json.loads(body)["id"])
        else:
            wrong.append(f"{number}: {answer[:200]!r}")
        slowest[0] = max(slowest[0], time.monotonic() - at)


def ask() -> bytes:
    with socket.create_connection(("127.0.0.1", 8420), timeout=30) as connection:
        connection.sendall(REQUEST)
        answer = b""
        while data := connection.recv(65_536):
            answer += data
    return answer


print("begun", flush=True)
threads = [threading.Thread(target=work) for _ in range(THREADS)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(
    json.dumps({"accepted": len(accepted), "ids": len(set(accepted)), "wrong": wrong, "slowest": slowest[0]})
)
