"""Images for Testcontainers, made out of a server program of this machine where no registry answers.

`python -m tests.support.images` makes them and prints their names.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PULLED = {"redis": "redis:7.0", "valkey": "valkey/valkey:9"}
"""What is pulled when nothing else is said and there is no program to make an image of."""

PROGRAM = "/usr/bin/server"
LABEL = "prefork-q-test-run"


class NoImage(Exception):
    """There is no image, or its container does not run; the text says why."""


class Engine:
    """A Docker engine that answers."""

    def __init__(self, client: Any) -> None:
        self._client = client

    @classmethod
    def connect(cls, environ: Mapping[str, str], notes: list[str]) -> Engine | None:
        """Return the engine, or None; why not stands in `notes` then."""
        if environ.get("PREFORK_Q_TEST_DOCKER") == "0":
            notes.append("Docker is left alone: PREFORK_Q_TEST_DOCKER=0")
            return None
        try:
            import docker
            from docker.errors import DockerException
        except ImportError:
            notes.append("no Testcontainers: the `test` extra is not installed")
            return None
        if not _listens(environ):  # the client leaves sockets open when nobody answers
            notes.append("no Docker engine answers: the servers run as processes")
            return None
        try:
            # Seconds: an engine on this machine answers within milliseconds, but making an image takes some.
            client = docker.from_env(timeout=60)
        except DockerException as error:
            notes.append(f"the Docker engine does not answer, the servers run as processes: {error}")
            return None
        return cls(client)

    def close(self) -> None:
        self._client.close()

    def image(self, kind: str, wanted: str | None, program: Path | None, version: str) -> str:
        """Return the name of an image that is there: the wanted one, one made of `program`, or a pulled one.

        Raises:
            NoImage: none of them can be had.
        """
        if wanted is None and program is not None:
            return self._made(kind, program, version)
        name = wanted or PULLED[kind]
        if not self._has(name):
            self._pull(name)
        return name

    def try_out(self, image: str) -> str:
        """Run a container of `image` and return the server's line about its version.

        Raises:
            NoImage: it does not run, whatever the reason.
        """
        from docker.errors import DockerException

        try:
            # The entry points of the official images take `--version` for the server's, ours are the server.
            output = self._client.containers.run(image, ["--version"], remove=True, network_mode="bridge")
        except DockerException as error:
            raise NoImage(f"a container of {image} does not run: {error}") from error
        return str(output.decode())

    def remove_containers(self, run: str) -> list[str]:
        """Remove what containers of test run `run` are left, and return their names."""
        left = self._client.containers.list(all=True, filters={"label": f"{LABEL}={run}"})
        for container in left:
            container.remove(force=True, v=True)
        return [container.name for container in left]

    def _has(self, name: str) -> bool:
        from docker.errors import ImageNotFound

        try:
            self._client.images.get(name)
        except ImageNotFound:
            return False
        return True

    def _pull(self, name: str) -> None:
        from docker.errors import DockerException
        from requests.exceptions import RequestException

        try:
            self._client.images.pull(name)
        except (DockerException, RequestException) as error:
            raise NoImage(f"image {name} is not there and cannot be pulled: {error}") from error

    def _made(self, kind: str, program: Path, version: str) -> str:
        from docker.errors import DockerException

        digest = hashlib.sha256(program.read_bytes()).hexdigest()[:12]
        name = f"prefork-q-test-{kind}:{version}-{digest}"
        if self._has(name):
            return name
        with tempfile.TemporaryDirectory(prefix="prefork-q-image-") as folder:
            lay_out(program, Path(folder))
            try:
                self._client.images.build(path=folder, tag=name, rm=True)
            except DockerException as error:
                raise NoImage(f"image {name} cannot be made: {error}") from error
        return name


def _listens(environ: Mapping[str, str]) -> bool:
    """Tell whether somebody listens where the engine should; of other places than Unix sockets, assume it."""
    scheme, _, path = environ.get("DOCKER_HOST", "unix:///var/run/docker.sock").partition("://")
    if scheme != "unix":
        return True
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(5)
        return probe.connect_ex(path) == 0


def lay_out(program: Path, folder: Path) -> None:
    """Write what `docker build` takes: the program, every library that it loads, and nothing else."""
    root = folder / "root"
    (root / "data").mkdir(parents=True)
    (root / "tmp").mkdir()
    for source, target in [(str(program), PROGRAM), *((path, path) for path in libraries(program))]:
        copy = root / target.lstrip("/")
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, copy)  # follows links: the name that the program asks for, the file behind it
    (folder / "Dockerfile").write_text(
        f'FROM scratch\nCOPY root/ /\nWORKDIR /data\nEXPOSE 6379\nENTRYPOINT ["{PROGRAM}"]\n'
    )


def libraries(program: Path) -> list[str]:
    """The shared libraries that `ldd` names for `program`, its loader among them."""
    listed = subprocess.run(["ldd", str(program)], capture_output=True, text=True, timeout=30, check=False)
    if listed.returncode:  # a static program has none
        return []
    return re.findall(r"(?:=> |^\s+)(/\S+) \(0x", listed.stdout, flags=re.MULTILINE)


def main() -> int:
    from tests.support.flavours import choose

    choice = choose(os.environ)
    for note in choice.notes:
        print(note, file=sys.stderr)
    for flavour in choice.flavours:
        print(flavour)
    return 0 if choice.flavours and all(flavour.image for flavour in choice.flavours) else 1


if __name__ == "__main__":
    sys.exit(main())
