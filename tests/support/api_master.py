"""A program that does for one api process what the master does: opens sockets, forks it, talks to it.

`python -m tests.support.api_master FLAGS_AS_JSON SOCKET_PATH` writes lines of JSON: `{"ready": {...}}` or
`{"failed": reason}`, and at last `{"exit_code": n}`. It reads commands, a line each:
`drain SECONDS [PATIENCE]`, `hang up` (as a master that dies).
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys

from prefork_q.api import run_api
from prefork_q.app import load_app
from prefork_q.config import load
from prefork_q.events import Events, Sink
from prefork_q.ipc.birth import Birth
from prefork_q.ipc.channel import Channel, ChannelClosed
from prefork_q.ipc.fork import fork
from prefork_q.ipc.messages import Drain, Failed, Go, Hello, Ready
from prefork_q.ipc.scoreboard import Scoreboard


def main(flags: dict[str, object], path: str) -> None:
    config = load(flags, {})
    tcp = socket.create_server(("127.0.0.1", 0))
    unix = socket.socket(socket.AF_UNIX)
    unix.bind(path)
    unix.listen()
    ours, theirs = Channel.pair()
    board = Scoreboard(slots=1, threads=1, held=1)
    birth = Birth("api", 0, "test.api.1", 1, os.getpid(), theirs, board, listeners=(tcp, unix))
    events = Events(Sink.stderr(), format="json", level="debug", process={})

    def child() -> int:
        return run_api(birth, config, load_app(str(config.target)), events)

    pid = fork(child, keep_fds=[theirs.fileno(), tcp.fileno(), unix.fileno()])
    theirs.close()
    # As with a master that stops: when the last process that has a socket goes, it refuses.
    port = tcp.getsockname()[1]
    tcp.close()
    unix.close()

    poller = select.poll()
    poller.register(ours, select.POLLIN)
    poller.register(sys.stdin, select.POLLIN)
    channel_fd = ours.fileno()
    while True:
        for fd, _ in poller.poll():
            if fd == channel_fd:
                try:
                    message = ours.receive()
                except ChannelClosed:
                    finish(pid)
                if isinstance(message, Hello):
                    ours.send(Go())
                elif isinstance(message, Ready):
                    say({"ready": {"port": port, "pid": pid}})
                elif isinstance(message, Failed):
                    say({"failed": message.reason})
                continue
            command, _, argument = sys.stdin.readline().strip().partition(" ")
            if command == "drain":
                ours.send(Drain(*map(float, argument.split())))
            elif command == "hang":
                ours.close()
                finish(pid)
            else:
                os.kill(pid, signal.SIGKILL)
                finish(pid)


def finish(pid: int) -> None:
    _, status = os.waitpid(pid, 0)
    say({"exit_code": os.waitstatus_to_exitcode(status)})
    sys.exit(0)


def say(word: dict[str, object]) -> None:
    print(json.dumps(word), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), sys.argv[2])
