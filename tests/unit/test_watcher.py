"""What the watcher watches, and what is said where its library is missing."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from prefork_q.errors import ConfigurationError
from prefork_q.watcher import folders_of, require_watchfiles


def test_a_file_is_watched_by_its_folder(tmp_path: Path) -> None:
    assert folders_of(f"{tmp_path}/handlers.py:app") == [tmp_path.resolve()]


def test_a_module_of_the_current_folder_is_watched_by_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "handlers.py").touch()
    (tmp_path / "package").mkdir()
    assert folders_of("handlers:app") == folders_of("package.deep.module:app") == [tmp_path]
    assert folders_of("no_such_module:app") == [tmp_path]


def test_an_installed_package_is_watched_by_its_own_folder_and_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "elsewhere" / "shop_of_tests"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.chdir(tmp_path)
    assert folders_of("shop_of_tests.tasks:app") == [package.resolve()]
    assert "shop_of_tests" not in sys.modules


def test_a_missing_library_is_told_with_the_way_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    require_watchfiles()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"pip install 'prefork-q\[reload\]'"):
        require_watchfiles()
