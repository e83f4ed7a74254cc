"""Stacks: what the threads of a process do, from either of the two writers."""

from __future__ import annotations

import faulthandler
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from prefork_q.ipc.scoreboard import Scoreboard
from prefork_q.ipc.stacks import STACK_LIMIT, StackFile, ThreadStack, stacks_in
from prefork_q.worker.stacks import Stacks


@pytest.fixture
def file() -> Iterator[StackFile]:
    file = StackFile()
    yield file
    file.close()


@contextmanager
def waiting(name: str) -> Iterator[threading.Thread]:
    """A thread that waits in a function that can be recognised."""
    over = threading.Event()

    def wait_for_the_end() -> None:
        over.wait(20)

    thread = threading.Thread(target=wait_for_the_end, name=name)
    thread.start()
    yield thread
    over.set()
    thread.join()


def test_a_main_thread_answers_with_names_and_the_last_call_last(file: StackFile) -> None:
    slot = Scoreboard(1, 1, 1).worker(0)
    with waiting("processor-0"):
        Stacks(os.dup(file.fileno()), slot).write(7)

    by_name = {stack.name: stack for stack in stacks_in(file.read(), {}, serial=7)}
    assert {"MainThread", "processor-0"} <= set(by_name)
    frames = by_name["processor-0"].frames
    assert "in wait_for_the_end" in frames[-3]
    assert "threading.py" in frames[-1]
    assert frames[0].startswith('  File "')


def test_faulthandlers_words_are_read_with_the_names_that_are_known(file: StackFile) -> None:
    with waiting("processor-0") as thread:
        assert thread.ident is not None
        faulthandler.dump_traceback(file.fileno(), all_threads=True)
        stacks = stacks_in(file.read(), {thread.ident: "processor-0"})

    (found,) = [stack for stack in stacks if stack.name == "processor-0"]
    assert any("in wait_for_the_end" in frame for frame in found.frames)
    (current,) = [stack for stack in stacks if stack.is_current]
    assert current.ident == threading.get_ident()


def test_the_answer_to_this_question_counts_and_no_other(file: StackFile) -> None:
    stacks = Stacks(os.dup(file.fileno()), Scoreboard(1, 1, 1).worker(0))
    heading = b"Thread 0x000000000000002a (most recent call first):"
    os.write(file.fileno(), heading + b'\n  File "a.py", line 1 in f\n')
    stacks.write(3)

    assert stacks_in(file.read(), {}, serial=4) == [ThreadStack(42, "0x2a", ('  File "a.py", line 1, in f',))]
    assert 42 not in [stack.ident for stack in stacks_in(file.read(), {}, serial=3)]


def test_after_it_was_cleared_the_writer_goes_on_at_the_begin(file: StackFile) -> None:
    writer = os.dup(file.fileno())
    os.write(writer, b"old words\n")
    file.clear()
    os.write(writer, b"new")
    assert (file.read(), file.size) == ("new", 3)
    os.close(writer)


def test_a_stack_is_bounded_and_can_begin_at_the_handler() -> None:
    below = '  File "/x/prefork_q/worker/processor.py", line 9, in _attempt'
    frames = ('  File "threading.py", line 1, in run', below, '  File "h.py", line 2, in spin')
    assert ThreadStack(1, "p", frames).user_text == frames[-1]
    assert ThreadStack(1, "p", frames[:2]).user_text == "\n".join(frames[:2])
    assert len(ThreadStack(1, "p", frames * 1_000).text) <= STACK_LIMIT


def test_garbage_is_no_stack() -> None:
    assert stacks_in("\0\0\0 Fatal Python error: x\n\nDump y\nThread nothing\n", {}) == []
