"""Other ways to run it under systemd: secrets as credentials, instances, the API alone."""

from __future__ import annotations

import pytest

from tests.support.service import SETTINGS, Service
from tests.support.until import until

pytestmark = pytest.mark.timeout(300)

TOKEN = "3PnQw0cY8mJx7bVd2kRf5tZh"
SECRET = "p@ss/w:rd"


def test_secrets_come_as_credentials(service: Service) -> None:
    service.system.put("/etc/credstore/prefork-q.redis-password", f"{SECRET}\n", mode="600")
    service.system.put("/etc/credstore/prefork-q.api-tokens", f"shop submit,read {TOKEN}\n", mode="600")
    service.sh(f"redis-cli CONFIG SET requirepass '{SECRET}'")
    try:
        service.start()
        url = "http://127.0.0.1:8420/tasks"
        ask = f"curl -s -o /dev/null -w '%{{http_code}}' -H 'Content-Type: application/json' {url}"
        body = '{"type": "nap", "payload": {"seconds": 0.01}}'
        refused = service.sh(f"{ask} -d '{body}'")
        accepted = service.sh(f"{ask} -d '{body}' -H 'Authorization: Bearer {TOKEN}'")
        assert (refused, accepted) == ("401", "202")
        seen = service.sh(
            "journalctl -u prefork-q --no-pager -o verbose; ps -eo args; systemctl show prefork-q"
        )
        assert SECRET not in seen
        assert TOKEN not in seen
    finally:
        service.sh("systemctl stop prefork-q")
        service.sh(f"REDISCLI_AUTH='{SECRET}' redis-cli CONFIG SET requirepass ''")


def test_instances_work_for_an_api_that_runs_alone(service: Service) -> None:
    service.sh("systemctl disable --now prefork-q.socket prefork-q.service 2>&1")
    mail = SETTINGS.replace("workers = 2", 'workers = 1\nqueues = "mail"')
    service.system.put("/etc/prefork-q/mail.toml", mail, mode="640")
    service.sh("systemd-tmpfiles --create")

    service.sh("systemctl start prefork-q@mail prefork-q-api.socket prefork-q-api", timeout=60)

    for unit in ("prefork-q@mail", "prefork-q-api"):
        assert service.system.run(f"systemctl is-active {unit}").stdout.strip() == "active"
    until(lambda: "1/1 workers" in service.system.show("prefork-q@mail", "StatusText"), 10, "its sentence")
    assert "listening on 127.0.0.1:8420" in service.system.show("prefork-q-api", "StatusText")
    (id,) = service.submit("nap", [{"seconds": 0.01}], queue="mail")
    assert service.task(id, wait=20)["status"] == "succeeded"

    service.sh("systemctl restart prefork-q-api", timeout=60)
    assert service.task(id)["status"] == "succeeded"
    status = service.sh(
        "/opt/prefork-q/bin/prefork-q ctl --socket /run/prefork-q-mail/ctl.sock status --check"
    )
    assert status == ""
    service.sh("systemctl stop prefork-q@mail prefork-q-api prefork-q-api.socket", timeout=60)
