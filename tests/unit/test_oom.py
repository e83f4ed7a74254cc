"""The kernel's count of out-of-memory kills explains as many deaths."""

from __future__ import annotations

from pathlib import Path

import pytest

from prefork_q.master.oom import WINDOW, OomKills, events_file


class Cgroup:
    def __init__(self, folder: Path) -> None:
        self.file = folder / "memory.events"
        self.set(3)

    def set(self, kills: int) -> None:
        self.file.write_text(f"low 0\nhigh 0\nmax 17\noom 4\noom_kill {kills}\noom_group_kill 0\n")


@pytest.fixture
def cgroup(tmp_path: Path) -> Cgroup:
    return Cgroup(tmp_path)


def test_each_kill_explains_one_death(cgroup: Cgroup) -> None:
    kills = OomKills(cgroup.file)
    kills.note(0.0)
    assert not kills.explains(1.0)

    cgroup.set(5)

    assert [kills.explains(2.0) for _ in range(3)] == [True, True, False]


def test_a_kill_of_long_ago_explains_nothing(cgroup: Cgroup) -> None:
    kills = OomKills(cgroup.file)
    kills.note(0.0)
    cgroup.set(4)
    kills.note(1.0)
    kills.note(1.5 + WINDOW)
    kills.note(3.0 + 2 * WINDOW)
    assert not kills.explains(4.0 + 2 * WINDOW)


def test_where_nothing_can_be_read_nothing_is_said(tmp_path: Path) -> None:
    for kills in (OomKills(None), OomKills(tmp_path / "absent")):
        kills.note(0.0)
        assert not kills.explains(1.0)


def test_the_file_is_that_of_the_own_cgroup(tmp_path: Path) -> None:
    own = tmp_path / "cgroup"
    own.write_text("1:name=systemd:/x\n0::/system.slice/q.service\n")
    folder = tmp_path / "fs" / "system.slice" / "q.service"
    assert events_file(own, tmp_path / "fs") is None
    folder.mkdir(parents=True)
    (folder / "memory.events").touch()
    assert events_file(own, tmp_path / "fs") == folder / "memory.events"
    own.write_text("4:memory:/old\n")
    assert events_file(own, tmp_path / "fs") is None
    assert events_file(tmp_path / "absent", tmp_path / "fs") is None
