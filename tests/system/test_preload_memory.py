"""What the handlers' import has made is shared by the workers, and stays shared while they work."""

from __future__ import annotations

from pathlib import Path

from tests.bench.preload import measure

WORKERS, MEBIBYTES, TASKS = 3, 60, 300


def test_workers_share_what_was_imported_before_the_fork(tmp_path: Path) -> None:
    without = measure(tmp_path / "without", preload="on", workers=WORKERS, mebibytes=0, tasks=TASKS)
    loaded = measure(tmp_path / "with", preload="on", workers=WORKERS, mebibytes=MEBIBYTES, tasks=TASKS)

    copy = loaded.template_rss - without.template_rss
    assert copy > MEBIBYTES / 2
    assert loaded.least_tasks >= TASKS
    assert loaded.workers_pss < 1.5 * copy + WORKERS * without.worker_pss
