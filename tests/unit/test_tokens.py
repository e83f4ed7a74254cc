"""Files of tokens: what may stand in them, and when they are read again."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import pytest

from prefork_q.errors import ConfigurationError
from prefork_q.tokens import LOOK, Tokens, read_tokens

SECRET = "3PnQw0cY8mJx7bVd2kRf5tZh"
OTHER = "another-token-of-24-char"
DIGEST = hashlib.sha256(OTHER.encode()).hexdigest()
TEXT = f"# who  what  secret\n\nshop  submit,read  {SECRET}\n\tops admin sha256:{DIGEST.upper()} \r\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "tokens"
    file.write_text(TEXT)
    return file


def test_a_line_is_a_name_scopes_and_a_token_or_its_hash(file: Path) -> None:
    tokens = Tokens([file])

    shop, ops = tokens.find(SECRET), tokens.find(OTHER)
    assert shop is not None
    assert ops is not None
    assert (shop.name, shop.scopes) == ("shop", {"submit", "read"})
    assert (ops.name, ops.scopes) == ("ops", {"admin"})
    for wrong in ("", SECRET[:-1], SECRET + "x", SECRET.lower(), DIGEST, f"sha256:{DIGEST}", "é"):
        assert tokens.find(wrong) is None


def test_several_files_are_one_list(file: Path, tmp_path: Path) -> None:
    more = tmp_path / "more"
    more.write_text("third read a-third-token-of-its-own==\n")

    assert [token.name for token in read_tokens([file, more])] == ["shop", "ops", "third"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "no token"),
        ("# nothing\n", "no token"),
        ("shop\n", "line 1: write a name"),
        (f"shop submit read {SECRET}\n", "line 1: write a name"),
        (f"\nsh\x00op submit {SECRET}\n", "line 2: the name"),
        (f"shop write {SECRET}\n", "scopes of shop"),
        (f"shop submit, {SECRET}\n", "scopes of shop"),
        ("shop submit short\n", "token of shop"),
        ("shop submit with-a-é-in-the-middle\n", "token of shop"),
        ("shop submit sha256:abcd\n", "token of shop"),
        (f"shop submit {SECRET}\nshop read {OTHER}\n", "the name of shop is there twice"),
        (f"a submit {SECRET}\nb read {SECRET}\n", "the token of b is there twice"),
        (f"a submit {OTHER}\nb read sha256:{DIGEST}\n", "the token of b is there twice"),
    ],
)
def test_a_wrong_file_is_refused_and_no_secret_is_told(file: Path, text: str, told: str) -> None:
    file.write_text(text)

    with pytest.raises(ConfigurationError, match=told) as caught:
        Tokens([file])

    assert SECRET not in str(caught.value)
    assert "short" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"\xe9\n")
    (tmp_path / "large").write_bytes(b"#" * (1 << 20) + b"\n#")
    for name in ("missing", ".", "latin", "large"):
        with pytest.raises(ConfigurationError, match=r"token_file .*" + name.replace(".", "")):
            Tokens([tmp_path / name])


def test_a_changed_file_is_read_again_and_a_wrong_one_changes_nothing(file: Path, tmp_path: Path) -> None:
    told: list[ConfigurationError | None] = []
    tokens = Tokens([file], told.append)

    def replace(text: str) -> None:
        (tmp_path / "new").write_text(text)
        os.replace(tmp_path / "new", file)
        time.sleep(LOOK + 0.05)  # until it looks again

    replace(f"shop admin {OTHER}\n")
    assert tokens.find(SECRET) is None
    new = tokens.find(OTHER)
    assert new is not None
    assert new.scopes == {"admin"}
    assert told == [None]

    replace("nonsense\n")
    assert tokens.find(OTHER) == new
    file.unlink()
    time.sleep(LOOK + 0.05)
    assert tokens.find(OTHER) == new
    assert [type(wrong) for wrong in told] == [type(None), ConfigurationError, ConfigurationError]

    replace(TEXT)
    assert tokens.find(SECRET) is not None
    assert told[3:] == [None]
