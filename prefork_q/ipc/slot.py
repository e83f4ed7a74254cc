"""A worker's slot of the scoreboard: written with plain stores, readable after any death.

Who writes what (nobody else, so there is no lock):
  master            incarnation, generation, place, pid, alive
  worker main       state, beat, names, counters, histograms, seconds, held entries, `idle`, threads,
                    baseline, since when Redis does not serve it
  processor p       the entry of processor p (its thread, or the main thread on its behalf)
  keeper            renewed / lost / cancel of held entries, rss and pss, is stopped

Consistency. `struct.pack_into` first clears its record and then stores its members in order, and
the flag that makes a record valid is the last member. So whoever reads a record whose flag is set
reads all of it, unless it is rewritten meanwhile; readers of a living process look twice. After
waitpid a slot stands still and is exact. Single words are stored whole through memoryviews, never
by `pack_into`, since a reader must not see the zero in between (a beat of 0 reads as silence).
What the keeper says of a held entry carries the token that it speaks of, so words that come too
late, for an entry that was reused meanwhile, say nothing of the new one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from math import inf
from mmap import mmap
from struct import Struct
from typing import Final

from prefork_q.ipc import stats
from prefork_q.ipc.stats import BOUNDS, Held, Histogram, Running, Second, SlotNumbers, SlotSnapshot, TypeStats

STATES: Final = ("starting", "ready", "draining", "hooks", "ended")
"""hooks: starting, in the code of a start hook; ended: it exits by itself, and has told all there was."""
IDLE: Final = 0
RUNNING: Final = 1
FINISHED: Final = 2
"""States of a processor: nothing; inside a handler; ran, outcome not committed yet."""

# id, type, attempt, token, started_at, deadline, delay, state
_PROCESSOR: Final = Struct("@36s4x100s4xqqdddB7x")
# id, token, claimed_at, is held; then the keeper's words: renewed token, renewed at, lost, cancelled
_HELD: Final = Struct("@36s4xqdB7x")
_HELD_WORDS: Final = 12
_RENEWED_TOKEN, _RENEWED_AT, _LOST, _CANCELLED = 8, 9, 10, 11
_IS_HELD: Final = 56

_BOUNDS: Final = (*BOUNDS, inf)

_NAME_WORDS: Final = 13
_TYPE_WORDS: Final = stats.TYPE_COUNTERS + stats.BUCKETS + 1
_WAIT_WORDS: Final = stats.BUCKETS + 1

# The layout of a slot, in words of 8 bytes.
_INCARNATION_BYTES: Final = 128
_GENERATION, _PID, _ALIVE, _STATE, _BEAT, _RSS, _PSS = range(16, 23)
_BASELINE, _STOPPED, _MAIN_THREAD, _UNSERVED = range(23, 27)
_PLACE: Final = 31
_COUNTERS: Final = 32
_SECONDS: Final = _COUNTERS + stats.COUNTERS
_TYPE_NAMES: Final = _SECONDS + 3 * stats.RING
_QUEUE_NAMES: Final = _TYPE_NAMES + _NAME_WORDS * stats.MAX_TYPES
_TYPES: Final = _QUEUE_NAMES + _NAME_WORDS * stats.MAX_QUEUES
_WAITS: Final = _TYPES + _TYPE_WORDS * stats.MAX_TYPES
_PROCESSORS: Final = _WAITS + _WAIT_WORDS * stats.MAX_QUEUES
_PAGE_WORDS: Final = 512


def slot_words(threads: int, held: int) -> int:
    """Return the words of one slot, whole pages, so that no two workers write to one page."""
    words = _PROCESSORS + threads * (_PROCESSOR.size // 8 + 1) + held * _HELD_WORDS
    return -(-words // _PAGE_WORDS) * _PAGE_WORDS


class WorkerSlot:
    """The view of one worker's slot; every process may make one, each writes only its own part."""

    __slots__ = (
        "_all_held",
        "_at",
        "_beat",
        "_bytes",
        "_counters",
        "_durations",
        "_entry",
        "_entry_words",
        "_floats",
        "_is_held",
        "_memory",
        "_pack_held",
        "_pack_processor",
        "_processor",
        "_processor_state",
        "_seconds",
        "_size",
        "_threads",
        "_types",
        "_waits",
        "_words",
        "held",
        "number",
        "threads",
    )  # fmt: skip

    def __init__(self, memory: mmap, at: int, number: int, threads: int, held: int) -> None:
        """`at` is the slot's first word."""
        self.number = number
        self.threads = threads
        self.held = held
        self._memory = memory
        self._bytes = memoryview(memory)
        self._words = self._bytes.cast("q")
        self._floats = self._bytes.cast("d")
        self._at = at
        self._size = slot_words(threads, held)
        first = 8 * (at + _PROCESSORS)
        self._processor = tuple(first + p * _PROCESSOR.size for p in range(threads))
        self._processor_state = tuple(offset + _PROCESSOR.size - 8 for offset in self._processor)
        first += threads * _PROCESSOR.size
        self._entry = tuple(first + i * _HELD_WORDS * 8 for i in range(held))
        self._entry_words = tuple(offset // 8 for offset in self._entry)
        self._is_held = tuple(offset + _IS_HELD for offset in self._entry)
        self._all_held = slice(first + _IS_HELD, first + held * _HELD_WORDS * 8, _HELD_WORDS * 8)
        self._threads = first // 8 + held * _HELD_WORDS
        self._pack_processor = _PROCESSOR.pack_into
        self._pack_held = _HELD.pack_into
        self._beat = at + _BEAT
        self._counters = at + _COUNTERS
        self._types = at + _TYPES
        self._durations = at + _TYPES + stats.TYPE_COUNTERS
        self._waits = at + _WAITS
        self._seconds = at + _SECONDS

    # -- master ------------------------------------------------------------------------------------

    def open(self, incarnation: str, generation: int, place: int | None = None) -> None:
        """Clear the slot for a new incarnation; its predecessor is dead and its numbers are folded.

        `place` is the number under which people know the worker; by default that of the slot.
        """
        start, end = 8 * self._at, 8 * (self._at + self._size)
        self._bytes[start:end] = bytes(end - start)
        name = incarnation.encode()[:_INCARNATION_BYTES]
        self._bytes[start : start + len(name)] = name
        self._words[self._at + _GENERATION] = generation
        self._words[self._at + _PLACE] = self.number if place is None else place

    @property
    def place(self) -> int:
        """The number of the worker in log and status."""
        return self._words[self._at + _PLACE]

    @property
    def incarnation(self) -> str:
        start = 8 * self._at
        return bytes(self._bytes[start : start + _INCARNATION_BYTES]).rstrip(b"\0").decode()

    @property
    def generation(self) -> int:
        return self._words[self._at + _GENERATION]

    @property
    def pid(self) -> int:
        """0 while there is no process."""
        return self._words[self._at + _PID]

    @pid.setter
    def pid(self, pid: int) -> None:
        self._words[self._at + _PID] = pid

    @property
    def is_alive(self) -> bool:
        """Whether the master still has to wait for the process."""
        return self._words[self._at + _ALIVE] != 0

    @is_alive.setter
    def is_alive(self, alive: bool) -> None:
        self._words[self._at + _ALIVE] = int(alive)

    # -- worker: life ------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        """One of STATES."""
        return STATES[self._words[self._at + _STATE]]

    @state.setter
    def state(self, state: str) -> None:
        self._words[self._at + _STATE] = STATES.index(state)

    def beat(self, now: float) -> None:
        """The fetch loop turned, at boot time `now`."""
        self._floats[self._beat] = now

    @property
    def last_beat(self) -> float:
        return self._floats[self._beat]

    @property
    def baseline_bytes(self) -> int:
        """The resident memory when it became ready; 0 before."""
        return self._words[self._at + _BASELINE]

    @baseline_bytes.setter
    def baseline_bytes(self, size: int) -> None:
        self._words[self._at + _BASELINE] = size

    @property
    def unserved_since(self) -> float:
        """Boot time since when Redis has carried out none of its calls, though it asks; 0 if it does."""
        return self._floats[self._at + _UNSERVED]

    @unserved_since.setter
    def unserved_since(self, now: float) -> None:
        self._floats[self._at + _UNSERVED] = now

    @property
    def main_thread(self) -> int:
        """The identity of its main thread (`threading.get_ident`); 0 until it can be asked for stacks."""
        return self._words[self._at + _MAIN_THREAD]

    @main_thread.setter
    def main_thread(self, ident: int) -> None:
        self._words[self._at + _MAIN_THREAD] = ident

    def thread_started(self, p: int, ident: int) -> None:
        """Processor `p` is this thread from now on."""
        self._words[self._threads + p] = ident

    def thread_of(self, p: int) -> int:
        """The identity of processor `p`'s thread, 0 before it was started."""
        return self._words[self._threads + p]

    # -- worker: held entries ----------------------------------------------------------------------

    def hold(self, index: int, id: bytes, token: int, claimed_at: float) -> None:
        """Enter a claimed task; `claimed_at` (boot time) was taken before the claim was sent."""
        self._pack_held(self._memory, self._entry[index], id, token, claimed_at, 1)

    def drop(self, index: int) -> None:
        """Its outcome is committed, or it was given back."""
        self._bytes[self._is_held[index]] = 0

    def lease_started(self, index: int) -> float:
        """Return when the lease of the entry was last known to begin, boot time."""
        at = self._entry_words[index]
        claimed_at = self._floats[at + 6]
        if self._words[at + _RENEWED_TOKEN] != self._words[at + 5]:
            return claimed_at
        return max(claimed_at, self._floats[at + _RENEWED_AT])

    def is_lost(self, index: int, token: int) -> bool:
        """Whether the keeper found that the lease is another's."""
        return self._words[self._entry_words[index] + _LOST] == token

    def is_cancel_requested(self, index: int, token: int) -> bool:
        return self._words[self._entry_words[index] + _CANCELLED] == token

    # -- keeper ------------------------------------------------------------------------------------

    def renewed(self, index: int, token: int, at: float) -> None:
        """The lease was renewed by a call that was sent at boot time `at`."""
        entry = self._entry_words[index]
        if self._words[entry + _RENEWED_TOKEN] == token:
            self._floats[entry + _RENEWED_AT] = at
            return
        # The time of another claim must never be read with this one's token.
        self._words[entry + _RENEWED_TOKEN] = 0
        self._floats[entry + _RENEWED_AT] = at
        self._words[entry + _RENEWED_TOKEN] = token

    def lost(self, index: int, token: int) -> None:
        self._words[self._entry_words[index] + _LOST] = token

    def cancel_requested(self, index: int, token: int) -> None:
        self._words[self._entry_words[index] + _CANCELLED] = token

    @property
    def rss_bytes(self) -> int:
        return self._words[self._at + _RSS]

    @rss_bytes.setter
    def rss_bytes(self, size: int) -> None:
        self._words[self._at + _RSS] = size

    @property
    def is_stopped(self) -> bool:
        """Whether the kernel says that the process is stopped (state T)."""
        return self._words[self._at + _STOPPED] != 0

    @is_stopped.setter
    def is_stopped(self, stopped: bool) -> None:
        self._words[self._at + _STOPPED] = int(stopped)

    @property
    def pss_bytes(self) -> int:
        return self._words[self._at + _PSS]

    @pss_bytes.setter
    def pss_bytes(self, size: int) -> None:
        self._words[self._at + _PSS] = size

    # -- processors --------------------------------------------------------------------------------

    def start(
        self,
        p: int,
        id: bytes,
        type: bytes,
        attempt: int,
        token: int,
        started_at: float,
        deadline: float = 0.0,
        delay: float = -1.0,
    ) -> None:
        """Processor `p` is about to call the handler; times are boot time.

        `deadline`: when the process is killed for it, 0 for never; `delay`: the seconds until the next
        attempt if that happens, negative if there is none left.
        """
        self._pack_processor(
            self._memory, self._processor[p], id, type, attempt, token, started_at, deadline, delay, RUNNING
        )

    def finished(self, p: int) -> None:
        """The handler is left; its outcome is not committed yet."""
        self._bytes[self._processor_state[p]] = FINISHED

    def idle(self, p: int) -> None:
        self._bytes[self._processor_state[p]] = IDLE

    def processor_state(self, p: int) -> int:
        """IDLE, RUNNING or FINISHED."""
        return self._bytes[self._processor_state[p]]

    # -- worker: numbers ---------------------------------------------------------------------------

    def register(self, types: Sequence[str], queues: Sequence[str]) -> None:
        """Name the types and queues, in the order of the indexes that are used afterwards."""
        self._write_names(_TYPE_NAMES, types, stats.MAX_TYPES)
        self._write_names(_QUEUE_NAMES, queues, stats.MAX_QUEUES)

    def add(self, counter: int, n: int = 1) -> None:
        """Count; `counter` is one of the indexes of `stats`."""
        self._words[self._counters + counter] += n

    def add_for(self, type_index: int, counter: int, n: int = 1) -> None:
        """Count for the type and in all; `counter` is COMPLETED, FAILED, RETRIED or DEAD."""
        self._words[self._counters + counter] += n
        self._words[self._types + type_index * _TYPE_WORDS + counter] += n

    def observe_durations(self, type_index: int, seconds: Sequence[float]) -> None:
        """Add to the histogram of how long attempts of this type take."""
        self._observe(self._durations + type_index * _TYPE_WORDS, seconds)

    def observe_waits(self, queue_index: int, seconds: Sequence[float]) -> None:
        """Add to the histogram of how long tasks of this queue wait."""
        self._observe(self._waits + queue_index * _WAIT_WORDS, seconds)

    def _observe(self, at: int, values: Sequence[float]) -> None:
        # Sorted, a batch takes as many searches as there are bounds below its largest.
        values = sorted(values)
        below = 0
        for bucket, bound in enumerate(_BOUNDS):
            upto = bisect_right(values, bound)
            self._words[at + bucket] += upto - below
            if upto == len(values):
                break
            below = upto
        self._floats[at + stats.BUCKETS] += sum(values)

    def tick(self, now: float, completed: int, failed: int) -> None:
        """Add to what ended in the second of boot time `now`."""
        second = int(now)
        at = self._seconds + 3 * (second % stats.RING)
        words = self._words
        if words[at] != second:
            words[at + 1] = words[at + 2] = 0
            words[at] = second
        words[at + 1] += completed
        words[at + 2] += failed

    # -- readers -----------------------------------------------------------------------------------

    def running(self) -> list[Running]:
        """What the processors run; each entry is whole, the list is of about one moment."""
        return self._in_state(RUNNING)

    def left(self) -> list[Running]:
        """What the processors have run last, if nothing has followed it."""
        return self._in_state(FINISHED)

    def _in_state(self, state: int) -> list[Running]:
        entries = (self._read_processor(p, state) for p in range(self.threads))
        return [entry for entry in entries if entry is not None]

    def holds(self) -> list[Held]:
        """What the worker has claimed and not yet committed or given back."""
        flags = self._bytes[self._all_held].tolist()
        entries = (self._read_held(index) for index, is_held in enumerate(flags) if is_held)
        return [entry for entry in entries if entry is not None]

    def counter(self, counter: int) -> int:
        return self._words[self._counters + counter]

    def held_count(self) -> int:
        """How many entries `holds` would return."""
        return sum(self._bytes[self._all_held].tolist())

    def counters(self) -> tuple[int, ...]:
        return tuple(self._words[self._counters : self._counters + stats.COUNTERS].tolist())

    def numbers(self) -> SlotNumbers:
        """Return a copy of all numbers."""
        return SlotNumbers(
            counters=self.counters(),
            types=self._read_types(),
            waits=self._read_waits(),
            seconds=self.seconds(),
        )

    def type_names(self) -> list[str]:
        """Return the types that were named, and the one that stands for all others."""
        return [name for _, name in self._read_names(_TYPE_NAMES, stats.MAX_TYPES)]

    def snapshot(self) -> SlotSnapshot:
        """Return a copy of everything."""
        return SlotSnapshot(
            incarnation=self.incarnation,
            generation=self.generation,
            pid=self.pid,
            is_alive=self.is_alive,
            state=self.state,
            last_beat=self.last_beat,
            rss_bytes=self.rss_bytes,
            pss_bytes=self.pss_bytes,
            running=tuple(self.running()),
            left=tuple(self.left()),
            holds=tuple(self.holds()),
            counters=self.counters(),
            types=self._read_types(),
            waits=self._read_waits(),
            seconds=self.seconds(),
        )

    def seconds(self) -> tuple[Second, ...]:
        """What ended in each of the last seconds in which anything did, in no order."""
        words = self._words[self._seconds : self._seconds + 3 * stats.RING].tolist()
        return tuple(Second(*words[i : i + 3]) for i in range(0, len(words), 3) if words[i])

    def _read_processor(self, p: int, state: int) -> Running | None:
        for _ in range(3):
            first = _PROCESSOR.unpack_from(self._memory, self._processor[p])
            if first[7] != state:
                return None
            if first == _PROCESSOR.unpack_from(self._memory, self._processor[p]):
                id, type, attempt, token, started_at, deadline, delay, _ = first
                return Running(
                    p, _text(id), _text(type), attempt, token, started_at, deadline,
                    delay if delay >= 0 else None,
                )  # fmt: skip
        return None

    def _read_held(self, index: int) -> Held | None:
        for _ in range(3):
            first = _HELD.unpack_from(self._memory, self._entry[index])
            if not first[3]:
                return None
            if first == _HELD.unpack_from(self._memory, self._entry[index]):
                at = self._entry_words[index]
                is_renewed = self._words[at + _RENEWED_TOKEN] == first[1]
                renewed_at = self._floats[at + _RENEWED_AT] if is_renewed else 0.0
                return Held(index, _text(first[0]), first[1], first[2], renewed_at)
        return None

    def _read_types(self) -> dict[str, TypeStats]:
        return {
            name: self._read_type(index) for index, name in self._read_names(_TYPE_NAMES, stats.MAX_TYPES)
        }

    def _read_waits(self) -> dict[str, Histogram]:
        names = self._read_names(_QUEUE_NAMES, stats.MAX_QUEUES)
        return {name: self._read_histogram(self._waits + index * _WAIT_WORDS) for index, name in names}

    def _read_type(self, index: int) -> TypeStats:
        at = self._types + index * _TYPE_WORDS
        counts = tuple(self._words[at : at + stats.TYPE_COUNTERS])
        return TypeStats(counts, self._read_histogram(at + stats.TYPE_COUNTERS))

    def _read_histogram(self, at: int) -> Histogram:
        return Histogram(tuple(self._words[at : at + stats.BUCKETS]), self._floats[at + stats.BUCKETS])

    def _write_names(self, at: int, names: Sequence[str], limit: int) -> None:
        for index, name in enumerate([*names[: limit - 1]]):
            data = name.encode()[: stats.NAME_BYTES]
            start = 8 * (self._at + at + index * _NAME_WORDS)
            self._bytes[start : start + len(data)] = data

    def _read_names(self, at: int, limit: int) -> list[tuple[int, str]]:
        names = []
        for index in range(limit - 1):
            start = 8 * (self._at + at + index * _NAME_WORDS)
            name = bytes(self._bytes[start : start + stats.NAME_BYTES]).rstrip(b"\0")
            if not name:
                break
            names.append((index, name.decode(errors="replace")))
        return [*names, (limit - 1, stats.OTHER)]


def _text(field: bytes) -> str:
    return field.rstrip(b"\0").decode(errors="replace")
