"""Sentinels: processes of their own that watch a primary and make its replica the primary when it is gone."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import redis

from tests.support.flavours import Flavour
from tests.support.server import NEVER, Server, dies_with_its_parent, free_port
from tests.support.until import until

SERVICE = "tasks"
DOWN_AFTER, FAILOVER_TIMEOUT = 1_000, 4_000
"""Milliseconds."""


def place_of(server: Server) -> tuple[str, int]:
    parts = urlsplit(server.url)
    return parts.hostname or "", parts.port or 0


class Sentinel:
    """One sentinel, which runs from the moment that it is made."""

    def __init__(
        self,
        flavour: Flavour,
        folder: Path,
        primary: Server | int,
        *,
        quorum: int,
        down_after: int = DOWN_AFTER,
        lines: Sequence[str] = (),
        password: str | None = None,
    ) -> None:
        """`primary` may be a loopback port; `lines` are more of its configuration file's."""
        assert flavour.binary is not None
        folder.mkdir()
        self.port = free_port()
        host, port = ("127.0.0.1", primary) if isinstance(primary, int) else place_of(primary)
        # It writes its state into this file.
        file = folder / "sentinel.conf"
        file.write_text(
            f"port {self.port}\nbind 127.0.0.1\ndir {folder}\n"
            f"sentinel monitor {SERVICE} {host} {port} {quorum}\n"
            f"sentinel down-after-milliseconds {SERVICE} {down_after}\n"
            f"sentinel failover-timeout {SERVICE} {FAILOVER_TIMEOUT}\n"
            + "".join(f"{line}\n" for line in [*lines, *([f"requirepass {password}"] if password else [])])
        )
        with (folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [*dies_with_its_parent("KILL"), flavour.binary, str(file), "--sentinel"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        self.client: Any = redis.Redis(
            port=self.port, password=password, socket_timeout=2, retry=NEVER, decode_responses=True
        )
        until(self._answers, 10, "a sentinel that answers")

    def primary(self) -> tuple[str, int]:
        """Where it says that the primary is."""
        host, port = self.client.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)
        return host, int(port)

    def sees(self, *, sentinels: int, replicas: int) -> bool:
        """Whether it knows of so many others, and of so many replicas."""
        state = self.client.execute_command("SENTINEL", "MASTER", SERVICE)
        return (int(state["num-other-sentinels"]), int(state["num-slaves"])) == (sentinels, replicas)

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(10)

    def close(self) -> None:
        self.client.close()
        self.kill()

    def _answers(self) -> bool:
        try:
            return bool(self.client.ping())
        except redis.RedisError:
            assert self._process.poll() is None, "it ended"
            return False


def url_of(sentinels: Sequence[Sentinel], database: int = 0) -> str:
    """The URL that a node is given."""
    places = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in sentinels)
    return f"redis+sentinel://{places}/{SERVICE}/{database}"
