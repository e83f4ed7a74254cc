"""URLs that name sentinels: what they say, what is refused, and that no password is shown."""

from __future__ import annotations

import pytest

from prefork_q.addresses import parse_sentinels
from prefork_q.config import load
from prefork_q.connection import connect
from prefork_q.errors import ConfigurationError
from prefork_q.events import mask_url
from prefork_q.passwords import with_password

SEVERAL = "redis+sentinel://a,b:1234,[::1]:5/tasks"


def test_every_part_of_it_is_read() -> None:
    address = parse_sentinels("rediss+sentinel://anna:p%40ss@a:1,b/tasks%20here/7?ssl_ca_certs=/ca")

    assert address.sentinels == (("a", 1), ("b", 26379))
    assert (address.service, address.database, address.is_secure) == ("tasks here", 7, True)
    assert (address.username, address.password, address.query) == ("anna", "p@ss", "ssl_ca_certs=/ca")


def test_most_of_it_may_be_left_out() -> None:
    address = parse_sentinels(SEVERAL)

    assert address.sentinels == (("a", 26379), ("b", 1234), ("::1", 5))
    assert (address.database, address.is_secure, address.username, address.password) == (0, False, None, None)


@pytest.mark.parametrize(
    "url",
    [
        "redis+sentinel://a:1",
        "redis+sentinel://a:1/",
        "redis+sentinel:///tasks",
        "redis+sentinel://a:1,/tasks",
        "redis+sentinel://a:x/tasks",
        "redis+sentinel://a:70000/tasks",
        "redis+sentinel://a/tasks/one",
        "redis+sentinel://a/tasks/1/2",
    ],
)
def test_what_is_none_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load({"redis_url": url.replace("://", "://:secret@")}, {})

    assert "sentinel" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_options_and_passwords_reach_the_connections() -> None:
    url = with_password(f"{SEVERAL}/3?sentinel_password=theirs&ssl_ca_certs=/ca", "ours")
    options = connect(url).connection_pool.connection_kwargs

    assert (options["password"], options["db"], options["ssl_ca_certs"]) == ("ours", 3, "/ca")
    assert "sentinel_password" not in options
    assert (
        mask_url(url)
        == "redis+sentinel://:***@a,b:1234,[::1]:5/tasks/3?sentinel_password=***&ssl_ca_certs=/ca"
    )
