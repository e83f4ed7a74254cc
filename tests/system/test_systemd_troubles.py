"""What systemd makes of a service in trouble: hangs, kills, memory, a wrong configuration, no Redis."""

from __future__ import annotations

import time

import pytest

from tests.support.service import CONFIG, Service
from tests.support.until import until

pytestmark = pytest.mark.timeout(300)


def test_a_master_that_hangs_is_restarted_by_the_watchdog(service: Service) -> None:
    service.drop_in("[Service]\nWatchdogSec=3\n")
    service.start()
    before = service.pids()
    ids = service.submit("nap", [{"seconds": 0.5}] * 20)
    time.sleep(4)
    assert service.system.show("prefork-q", "NRestarts") == "0"  # it is fed under work

    service.sh(f"kill -STOP {service.master}")
    until(lambda: service.system.show("prefork-q", "NRestarts") == "1", 30, "the restart", every=0.2)
    until(lambda: service.state == "active", 20, "the service", every=0.2)

    assert "watchdog" in service.sh("journalctl -u prefork-q --no-pager -o cat").lower()
    assert not before & service.pids()
    service.until_all_done(len(ids), 60)
    assert service.sums()["completed_total"] == len(ids)


def test_a_killed_master_leaves_no_orphan_and_its_tasks_are_recovered(service: Service) -> None:
    service.start()
    before = service.pids()
    ids = service.submit("nap", [{"seconds": 1}] * 10)
    until(lambda: service.sums()["processing"], 10, "work", every=0.1)

    service.sh(f"kill -KILL {service.master}")
    until(lambda: service.system.show("prefork-q", "NRestarts") == "1", 20, "the restart", every=0.2)
    until(lambda: service.state == "active", 20, "the service", every=0.2)

    assert len(before) >= 6
    assert not before & service.pids()
    service.until_all_done(len(ids), 60)
    sums = service.sums()
    assert (sums["completed_total"], sums["dead"]) == (len(ids), 0)


def test_a_worker_beyond_the_limit_of_memory_is_killed_and_the_service_lives(service: Service) -> None:
    service.drop_in("[Service]\nMemoryMax=400M\nMemorySwapMax=0\n")
    service.start()
    master = service.master

    (id,) = service.submit("eat", [{"mebibytes": 2_000}])
    until(lambda: service.task(id)["status"] == "dead", 60, "the end of the eater", every=0.5)

    task = service.task(id)
    assert task["error"]["cause"]["signal"] in (9, "SIGKILL", "KILL"), task["error"]
    assert (service.state, service.master) == ("active", master)
    assert service.system.show("prefork-q", "NRestarts") == "0"
    story = [record["MESSAGE"] for record in service.system.journal(f"PREFORKQ_TASK_ID={id}")]
    assert any("dead" in message and "signal 9" in message for message in story), story
    (other,) = service.submit("nap", [{"seconds": 0.01}])
    assert service.task(other, wait=30)["status"] == "succeeded"


def test_a_wrong_configuration_is_told_and_not_tried_again(service: Service) -> None:
    service.configure(wokers=3)

    assert service.system.run("systemctl start prefork-q", timeout=60).returncode != 0

    assert service.state == "failed"
    assert service.system.show("prefork-q", "ExecMainStatus") == "78"
    assert service.system.show("prefork-q", "NRestarts") == "0"
    journal = service.sh("journalctl -u prefork-q --no-pager -o cat")
    assert "unknown option wokers" in journal
    assert "did you mean workers?" in journal


def test_handlers_that_cannot_be_imported_end_it_at_once(service: Service) -> None:
    service.write_handlers("\nimport no_such_module\n")

    assert service.system.run("systemctl start prefork-q", timeout=60).returncode != 0

    assert service.state == "failed"
    assert service.system.show("prefork-q", "ExecMainStatus") == "78"
    assert service.system.show("prefork-q", "NRestarts") == "0"
    assert "no_such_module" in service.system.show("prefork-q", "StatusText")


def test_it_waits_for_a_redis_that_is_not_there_yet(service: Service) -> None:
    service.drop_in("[Service]\nTimeoutStartSec=5\n")
    service.sh("systemctl stop redis-server; systemctl mask --runtime redis-server 2>&1")
    service.sh("systemctl start --no-block prefork-q")
    until(lambda: "redis" in service.sentence, 15, "a sentence about Redis", every=0.2)
    time.sleep(6)  # longer than the limit of the start, which it has asked to extend
    assert service.state == "activating"

    service.sh("systemctl unmask --runtime redis-server 2>&1; systemctl start redis-server")
    until(lambda: service.state == "active", 30, "the service", every=0.2)


def test_a_stop_limit_shorter_than_the_drain_is_told_at_the_start(service: Service) -> None:
    service.drop_in("[Service]\nTimeoutStopSec=2\n")
    service.start()

    (record,) = until(lambda: service.events("unit_disagrees"), 5, "the warning")
    assert "TimeoutStopSec=8" in record["MESSAGE"]
    checked = service.system.run("/opt/prefork-q/bin/prefork-q systemd --check")
    assert checked.returncode == 78
    assert "TimeoutStopSec is 2 s and the drain timeout 3 s" in checked.stdout
    # More than the unit's two seconds: the drain asks for what it needs.
    service.submit("nap", [{"seconds": 60}])
    until(lambda: service.sums()["processing"], 10, "work", every=0.1)
    service.sh("systemctl stop prefork-q", timeout=60)
    assert service.system.show("prefork-q", "Result") == "success"


def test_what_is_installed_is_verified(service: Service) -> None:
    check = "/opt/prefork-q/bin/prefork-q systemd --check"
    assert service.sh("systemd-analyze verify /etc/systemd/system/prefork-q*.service 2>&1") == ""
    assert service.sh("systemd-analyze verify /etc/systemd/system/prefork-q*.socket 2>&1") == ""
    for unit in ("prefork-q.service", "prefork-q@mail.service", "prefork-q-api.service"):
        exposure = service.sh(f"systemd-analyze security --no-pager {unit} | tail -n 1")
        assert float(exposure.split("service:")[1].split()[0]) <= 2.0, exposure
    assert "failed" not in service.sh(check)

    service.sh(f"sed -i 's/^drain_timeout.*/drain_timeout = \"60s\"/' {CONFIG}")
    outdated = service.system.run(check)
    assert (outdated.returncode, "it lacks TimeoutStopSec=65" in outdated.stdout) == (78, True), (
        outdated.stdout
    )
    service.sh("/opt/prefork-q/bin/prefork-q systemd 2>/dev/null && systemctl daemon-reload")
    assert "failed" not in service.sh(check)
    service.sh("rm /etc/systemd/system/prefork-q.service && systemctl daemon-reload")
    assert "is not there" in service.system.run(check).stdout
