"""The service under a real systemd: it starts, tells, reloads, stops and comes back, by `systemctl` alone."""

from __future__ import annotations

import json
import os
import re
import time

import pytest

from tests.support.service import DRAIN, OWN_HANDLERS, Service, script
from tests.support.until import until

pytestmark = pytest.mark.timeout(300)


def busyness() -> float:
    """How many times longer things may take since others work on this machine too."""
    return max(1.0, os.getloadavg()[0] / len(os.sched_getaffinity(0)))


SENTENCE = re.compile(r"2/2 workers, [\d,]+ tasks/s, [\d,]+ pending")


def test_it_starts_works_and_comes_back_after_a_reboot(service: Service) -> None:
    # It takes one on a machine of its own; other work is not the service's fault.
    assert service.start() < 5 * busyness()

    until(lambda: SENTENCE.fullmatch(service.sentence), 10, "the sentence", every=0.2)
    assert SENTENCE.search(service.sh("systemctl status prefork-q --no-pager"))
    files = service.sh("find /usr/lib/python3.11 -name '*.py' -size -64k | head -40").split()
    ids = service.submit("compress_file", [{"path": path} for path in files])
    service.until_all_done(len(ids))
    assert service.sums()["completed_total"] == len(files) == 40
    look = service.task(service.submit("look", [{}])[0], wait=20)["result"]
    assert look["uid"] != 0
    assert (look["no_new_privileges"], int(look["capabilities"], 16), look["writable"]) == (1, 0, [])
    assert look["program"] == 0
    told = {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"}
    assert not told & set(look["environment"])

    later = service.submit("nap", [{"seconds": 0.01}] * 20, delay_s=5)
    service.system.reboot()
    until(lambda: service.state == "active", 30, "the service after the boot", every=0.2)

    service.until_all_done(40 + 1 + len(later), 60)
    assert service.task(later[-1])["status"] == "succeeded"


def test_the_journal_tells_the_story_of_a_task(service: Service) -> None:
    service.start()
    (id,) = service.submit("nap", [{"seconds": 0.01}])
    (other,) = service.submit("eat", [{"mebibytes": -1}])
    service.task(id, wait=20)
    service.task(other, wait=20)

    record = until(lambda: service.system.journal(f"PREFORKQ_TASK_ID={id}"), 10, "its line")[-1]

    assert record["PREFORKQ_TYPE"] == "nap"
    assert (record["PREFORKQ_OUTCOME"], record["PREFORKQ_ATTEMPT"], record["PRIORITY"]) == (
        "succeeded",
        "1",
        "6",
    )
    assert record["_SYSTEMD_UNIT"] == "prefork-q.service"
    assert record["MESSAGE"].startswith(
        f"finished id={id} type=nap queue=default attempt=1 outcome=succeeded"
    )
    text = service.sh(f"journalctl -o cat --no-pager PREFORKQ_TASK_ID={other} -p err")
    assert text or service.task(other)["status"] == "succeeded"


def test_new_code_is_reloaded_without_a_gap_and_broken_code_is_not(service: Service) -> None:
    service.start()
    master = service.master
    ids = service.submit("nap", [{"seconds": 0.05}] * 100)

    service.write_handlers(OWN_HANDLERS.replace('"old"', '"new"'))
    service.sh("systemctl reload prefork-q", timeout=60)
    (after,) = service.submit("nap", [{"seconds": 0.01}])
    assert service.task(after, wait=20)["result"] == "new"

    service.write_handlers(OWN_HANDLERS + "\nraise RuntimeError('a mistake in the new code')\n")
    failed = service.system.run("systemctl reload prefork-q", timeout=60)
    assert failed.returncode != 0
    (still,) = service.submit("nap", [{"seconds": 0.01}])
    assert service.task(still, wait=20)["result"] == "new"

    assert service.state == "active"
    assert service.master == master
    journal = service.sh("journalctl -u prefork-q --no-pager -o cat")
    assert "a mistake in the new code" in journal
    until(lambda: "the last reload failed" in service.sentence, 5, "the sentence", every=0.2)
    service.until_all_done(len(ids) + 2)
    assert service.sums()["dead"] == 0
    states = [record["PREFORKQ_EVENT"] for record in service.system.journal("-u", "prefork-q")
              if record.get("PREFORKQ_EVENT") in ("reloaded", "reload_failed")]  # fmt: skip
    assert states == ["reloaded", "reload_failed"]


def test_a_stop_ends_within_the_drain_and_loses_nothing(service: Service) -> None:
    service.start()
    long = service.submit("nap", [{"seconds": 60}])
    short = service.submit("nap", [{"seconds": 0.2}] * 100)
    until(lambda: service.sums()["completed_total"] > 3, 10, "work", every=0.1)

    began = time.monotonic()
    service.sh("systemctl stop prefork-q", timeout=60)
    seconds = time.monotonic() - began

    # A second is for `docker exec`, `systemctl` and the kernel.
    assert DRAIN - 0.5 < seconds < DRAIN + busyness()
    assert service.system.show("prefork-q", "Result") == "success"
    assert service.pids() == set()
    service.start()
    sums = service.sums()
    assert sums["submitted_total"] == len(short) + len(long)
    # Whatever had not ended is there, and none is charged for the stop.
    open_tasks = sums["pending"] + sums["processing"] + sums["delayed"]
    assert sums["completed_total"] + open_tasks == len(short) + len(long)
    assert sums["dead"] == sums["crashes_total"] == 0


def test_a_restart_under_submissions_refuses_none(service: Service) -> None:
    service.start()
    service.system.copy(script("submitter.py"), "/opt/submitter.py")
    load = service.system.start_script("python3 /opt/submitter.py 200 8")
    assert load.stdout is not None
    assert load.stdout.readline() == "begun\n"
    time.sleep(1.5)  # so that there is a load before the restart
    service.sh("systemctl restart prefork-q", timeout=60)
    output, _ = load.communicate(timeout=90)

    result = json.loads(output.splitlines()[-1])
    assert (result["wrong"], result["accepted"], result["ids"]) == ([], 1_600, 1_600)
    assert service.system.show("prefork-q", "NRestarts") == "0"
    service.until_all_done(1_600, 60)
    assert service.sums()["completed_total"] == 1_600
