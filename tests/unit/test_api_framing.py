"""Chunked bodies, read in whatever pieces they come."""

from __future__ import annotations

from io import BytesIO

from hypothesis import given
from hypothesis import strategies as st

from prefork_q.api.framing import MAX_CHUNK_LINE, MAX_TRAILERS, StrictChunks


class Memory:
    """A body in memory."""

    def __init__(self) -> None:
        self.data = b""

    def append(self, data: bytes) -> None:
        self.data += data

    def getfile(self) -> BytesIO:
        return BytesIO(self.data)

    def __len__(self) -> int:
        return len(self.data)


def feed(chunks: StrictChunks, data: bytes, cuts: list[int]) -> int:
    """Give `data` in pieces that end at `cuts`; return how much was taken."""
    taken = 0
    for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        piece = data[start:end]
        while piece and not chunks.completed and chunks.error is None:
            n = chunks.received(piece)
            assert 0 < n <= len(piece)
            taken += n
            piece = piece[n:]
    return taken


@given(
    parts=st.lists(st.binary(min_size=1, max_size=40), max_size=6),
    extension=st.sampled_from([b"", b";a", b' ; a="b"', b";\xff"]),
    trailers=st.lists(st.sampled_from([b"A: b", b"Content-Length: 5"]), max_size=3),
    rest=st.binary(max_size=20),
    data=st.data(),
)
def test_a_body_is_the_same_however_it_is_cut(
    parts: list[bytes], extension: bytes, trailers: list[bytes], rest: bytes, data: st.DataObject
) -> None:
    wire = b"".join(b"%x%s\r\n%s\r\n" % (len(part), extension, part) for part in parts)
    wire += b"0%s\r\n%s\r\n" % (extension, b"".join(trailer + b"\r\n" for trailer in trailers))
    whole = wire + rest
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    memory = Memory()
    chunks = StrictChunks(memory)

    taken = feed(chunks, whole, cuts)

    assert chunks.error is None
    assert chunks.completed
    assert memory.data == b"".join(parts)
    assert taken == len(wire), "what follows belongs to the next request"


@given(wire=st.binary(max_size=200), data=st.data())
def test_noise_ends_in_a_refusal_or_waits_for_more_and_never_raises(wire: bytes, data: st.DataObject) -> None:
    chunks = StrictChunks(Memory())
    feed(chunks, wire, sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=5))))
    assert len(chunks) <= len(wire)


def test_lines_without_end_are_bounded() -> None:
    for wire in (
        b"1" * (MAX_CHUNK_LINE + 1),
        b"1;" + b"a" * MAX_CHUNK_LINE,
        b"0\r\n" + b"a: b\r\n" * (MAX_TRAILERS // 6 + 1),
        b"0\r\n" + b"a" * (MAX_TRAILERS + 1),
    ):
        chunks = StrictChunks(Memory())
        for start in range(0, len(wire), 100):
            if chunks.error is None:
                chunks.received(wire[start : start + 100])
        assert chunks.error is not None, wire[:20]
