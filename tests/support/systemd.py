"""A real systemd in a container: Debian 12 with systemd 252, made by debootstrap where no registry answers.

The image and the wheels are made once and kept in a cache folder outside of the repository
($XDG_CACHE_HOME/prefork-q-tests). The containers have no network: what is installed in them are files.

`python -m tests.support.systemd` makes both ahead, and says why it cannot; the first time takes minutes.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tests.support.images import LABEL
from tests.support.until import until

ROOT = Path(__file__).parents[2]
RELEASE = "bookworm"
PACKAGES = ("systemd", "systemd-sysv", "dbus", "python3", "python3-venv", "redis-server", "curl", "procps")

PREPARE = r"""
set -e
# User namespaces are not to be had in such a container; of our own units none asks for one.
mkdir -p /etc/systemd/system/redis-server.service.d /var/log/journal
printf '[Service]\nPrivateUsers=no\n' >/etc/systemd/system/redis-server.service.d/container.conf
printf '[global]\nno-index = true\nfind-links = /wheelhouse\n' >/etc/pip.conf
systemctl mask systemd-udevd.service apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer \
    e2scrub_all.timer fstrim.timer >/dev/null 2>&1
rm -rf /var/cache/apt/archives/*.deb /usr/share/doc /usr/share/man /usr/share/locale
"""
"""Makes a container of a plain system."""

INSTALL = """
set -e
python3 -m venv /opt/prefork-q
/opt/prefork-q/bin/pip install -q prefork-q
/opt/prefork-q/bin/prefork-q --version
"""

BOOT = 'CMD ["/bin/sh", "-c", "mount --make-rshared / && exec /lib/systemd/systemd"]'
"""Shared, as the mounts of a machine are: systemd passes credentials to services through one."""

RUN_OPTIONS = (
    "--network", "none", "--cap-add", "SYS_ADMIN", "--cap-add", "NET_ADMIN",
    "--security-opt", "seccomp=unconfined", "--security-opt", "apparmor=unconfined",
    "--tmpfs", "/run", "--tmpfs", "/tmp", "--volume", "/sys/fs/cgroup:/sys/fs/cgroup:rw",
    "--cgroupns=host", "--env", "container=docker", "--stop-signal", "SIGRTMIN+3",
)  # fmt: skip

MARKERS_OF_CONTAINER = ("async-timeout>=4.0.3",)
"""What the dependencies ask for on the container's Python 3.11.2, and not on that which downloads."""


class NoSystemd(Exception):
    """There is no such container here; the text says why."""


def cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(base, "prefork-q-tests")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextlib.contextmanager
def alone(name: str) -> Iterator[None]:
    """Let one process of this machine at a time make something."""
    with open(cache() / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def docker(*arguments: str, timeout: float = 60, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        ["docker", *arguments], capture_output=True, text=True, timeout=timeout, check=False
    )
    if check and done.returncode:
        raise NoSystemd(f"docker {' '.join(arguments[:3])}: {done.stderr.strip()}")
    return done


def require_engine() -> None:
    """Raise NoSystemd if there is no engine that makes such containers of ours."""
    if os.environ.get("PREFORK_Q_TEST_DOCKER") == "0":
        raise NoSystemd("Docker is left alone: PREFORK_Q_TEST_DOCKER=0")
    if shutil.which("docker") is None:
        raise NoSystemd("there is no docker")
    try:
        docker("info", "--format", "{{.ServerVersion}}", timeout=20)
    except subprocess.TimeoutExpired:
        raise NoSystemd("the Docker engine does not answer") from None


def system_image(*, may_take_minutes: bool = False) -> str:
    """Return the name of the image of a plain system; made if it is not there and that may take minutes.

    Raises:
        NoSystemd: it is not there, or cannot be made.
    """
    require_engine()
    debian = _digest(RELEASE, *PACKAGES)
    name = f"prefork-q-test-systemd:{debian}-{_digest(PREPARE, BOOT)}"
    with alone("systemd"):
        if not _has(name):
            archive = cache() / f"{RELEASE}-{debian}.tar"
            if not archive.exists():
                if not may_take_minutes:
                    raise NoSystemd("no image of a system yet: `python -m tests.support.systemd` makes it")
                _bootstrap(archive)
            plain = f"prefork-q-test-debian:{debian}"
            if not _has(plain):
                docker("import", str(archive), plain, timeout=300)
            _make(name, plain, PREPARE)
    return name


def _digest(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def _has(image: str) -> bool:
    return docker("image", "inspect", image, check=False).returncode == 0


def _make(name: str, base: str, script: str, folders: Mapping[Path, str] = MappingProxyType({})) -> None:
    """Make an image of another one: with what is in some folders, and what a script does there as root."""
    maker = f"prefork-q-test-maker-{uuid.uuid4().hex[:8]}"
    docker("create", "--network", "none", "--name", maker, base, "bash", "-c", script)
    try:
        for folder, place in folders.items():
            docker("cp", f"{folder}/.", f"{maker}:{place}")
        done = docker("start", "--attach", maker, timeout=180, check=False)
        if done.returncode:
            raise NoSystemd(f"image {name} cannot be made: {done.stderr}{done.stdout}")
        docker("commit", "--change", BOOT, maker, name, timeout=120)
    finally:
        docker("rm", "--force", maker, check=False)


def _bootstrap(archive: Path) -> None:
    if shutil.which("debootstrap") is None or os.geteuid():
        raise NoSystemd("debootstrap is missing, or this is not root: there is no way to make the image")
    with tempfile.TemporaryDirectory(prefix="systemd-", dir=cache()) as folder:
        root = Path(folder, "root")
        include = f"--include={','.join(PACKAGES)}"
        done = subprocess.run(
            ["debootstrap", "--variant=minbase", include, RELEASE, str(root)],
            capture_output=True, text=True, timeout=900, check=False,
        )  # fmt: skip
        if done.returncode:
            raise NoSystemd(f"debootstrap fails: {done.stdout[-500:]} {done.stderr[-500:]}")
        part = archive.with_suffix(".part")
        subprocess.run(["tar", "-C", str(root), "-cf", str(part), "."], check=True, timeout=300)
        part.rename(archive)


def wheelhouse() -> Path:
    """Return a folder with the wheel of this checkout and those that it depends on.

    Raises:
        NoSystemd: they cannot be had.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = (*project["dependencies"], *MARKERS_OF_CONTAINER)
    dependencies = cache() / f"wheels-{_digest(*wanted)}"
    with alone("wheels"):
        if not dependencies.exists():
            part = dependencies.with_suffix(".part")
            _pip("download", "--only-binary", ":all:", "--dest", str(part), *wanted)
            part.rename(dependencies)
        wheel = _project_wheel()
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()[:12]
        whole = cache() / f"wheelhouse-{digest}"
        if not whole.exists():
            for old in cache().glob("wheelhouse-*"):
                shutil.rmtree(old, ignore_errors=True)
            part = whole.with_suffix(".part")
            shutil.copytree(dependencies, part, dirs_exist_ok=True)
            shutil.copy(wheel, part)
            part.rename(whole)
    return whole


def _project_wheel() -> Path:
    """Return the wheel of this checkout, built anew if a file of it is newer."""
    folder = cache() / "wheel"
    sources = [ROOT / "pyproject.toml", ROOT / "README.md", *(ROOT / "prefork_q").rglob("*")]
    newest = max(path.stat().st_mtime for path in sources if path.is_file() and path.suffix != ".pyc")
    built = list(folder.glob("*.whl"))
    if built and built[0].stat().st_mtime >= newest:
        return built[0]
    shutil.rmtree(folder, ignore_errors=True)
    began = time.time()
    _pip("wheel", "--no-deps", "--wheel-dir", str(folder), str(ROOT))
    (wheel,) = folder.glob("*.whl")
    os.utime(wheel, (began, began))
    return wheel


def _pip(*arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pip", *arguments], capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode:
        raise NoSystemd(f"pip {arguments[0]} fails: {done.stderr[-500:]}")


def installed_image() -> str:
    """Return the name of an image in which this checkout's wheel is installed in /opt/prefork-q.

    Raises:
        NoSystemd: it cannot be made.
    """
    base, wheels = system_image(), wheelhouse()
    name = f"prefork-q-test-installed:{_digest(base, wheels.name, INSTALL)}"
    with alone("installed"):
        if not _has(name):
            for old in docker("images", "-q", "prefork-q-test-installed").stdout.split():
                docker("rmi", "--force", old, check=False)  # one that is still used stays
            _make(name, base, INSTALL, {wheels: "/wheelhouse"})
    return name


class System:
    """One container, running. What is run in it runs as root."""

    def __init__(self, image: str, run: str) -> None:
        self.name = f"prefork-q-test-{uuid.uuid4().hex[:12]}"
        docker("run", "--detach", "--name", self.name, "--label", f"{LABEL}={run}", *RUN_OPTIONS, image)
        try:
            self._until_up()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        docker("rm", "--force", "--volumes", self.name, check=False)

    def sh(self, script: str, *, timeout: float = 60, check: bool = True) -> str:
        """Run a script with bash; return what it printed. If it fails, so does the test."""
        done = self.run(script, timeout=timeout)
        if check and done.returncode:
            raise AssertionError(
                f"{script}: exit {done.returncode}\n{done.stdout}\n{done.stderr}\n{self.log_end()}"
            )
        return done.stdout

    def run(self, script: str, *, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        """Run a script with bash, whatever comes of it."""
        return docker("exec", self.name, "bash", "-c", script, timeout=timeout, check=False)

    def start_script(self, script: str) -> subprocess.Popen[str]:
        """Begin a script that goes on while the test does other things."""
        return subprocess.Popen(
            ["docker", "exec", self.name, "bash", "-c", script],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def put(self, path: str, text: str, *, mode: str = "644") -> None:
        """Write a file, and the folder that it is in."""
        command = ["docker", "exec", "--interactive", self.name, "bash", "-c"]
        script = f"mkdir -p {Path(path).parent} && cat >{path} && chmod {mode} {path}"
        subprocess.run([*command, script], input=text, text=True, timeout=30, check=True)

    def copy(self, source: Path, path: str) -> None:
        docker("cp", str(source), f"{self.name}:{path}")

    def reboot(self) -> None:
        """End everything as a shutdown does, and boot again."""
        docker("restart", "--time", "60", self.name, timeout=90)
        self._until_up()

    def show(self, unit: str, name: str) -> str:
        """Return a property of a unit."""
        return self.sh(f"systemctl show --property {name} --value {unit}").strip()

    def journal(self, *arguments: str) -> list[dict[str, Any]]:
        """Return what `journalctl` tells, a record each."""
        text = self.sh(f"journalctl --output json --no-pager {' '.join(arguments)}")
        return [json.loads(line) for line in text.splitlines()]

    def log_end(self, lines: int = 40) -> str:
        return self.run(f"systemctl --no-pager --failed; journalctl --no-pager -n {lines}", timeout=20).stdout

    def http(self, method: str, path: str, body: object = None) -> Any:
        """Ask the API; return the answer's JSON."""
        data = (
            "" if body is None else f"--header 'Content-Type: application/json' --data '{json.dumps(body)}'"
        )
        text = self.sh(
            f"curl --silent --show-error --fail-with-body --max-time 20 -X {method} {data} http://127.0.0.1:8420{path}"
        )
        return json.loads(text) if text else None

    def _until_up(self) -> None:
        def is_up() -> bool:
            return self.run("systemctl is-system-running").stdout.strip() in ("running", "degraded")

        until(is_up, 60, "the system's start")


def main() -> int:
    try:
        system_image(may_take_minutes=True)
        print(installed_image())
    except NoSystemd as reason:
        print(f"no systemd container: {reason}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
