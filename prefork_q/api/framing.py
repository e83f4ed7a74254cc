"""Reading requests off the wire so that nobody in front of us can read them otherwise.

waitress frames requests well, but takes the kind side where HTTP/1.1 leaves a choice: both length
headers, codings named twice, folded lines, a chunked body in HTTP/1.0, unknown versions. Whoever
chooses differently can be made to see another request than we do. So what is ambiguous is refused
here, before waitress reads it, and the connection closes (RFC 9112, sections 2.3, 3.2, 5.2, 6.3, 7.1).

Runs in the api process, main thread.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Protocol

from waitress.parser import HTTPRequestParser, ParsingError

from prefork_q.api.problems import Problem

REQUEST_LINE = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+) ([\x21-\x7e]+) HTTP/([0-9])\.([0-9])")
FIELD = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*([\t\x20-\x7e\x80-\xff]*)")
HOST = re.compile(rb"[A-Za-z0-9._~!$&'()*+;=%:\[\]-]*")
ABSOLUTE = re.compile(rb"https?://([^/?#]+)", re.IGNORECASE)
STRAY = re.compile(rb"(?:\r\n)*(?:[ \t\n\x0b\f]|\r[^\n])")
"""White space before a request that is no empty line; waitress would skip it."""
MAX_FIELDS = 100
MAX_LENGTH_DIGITS = 18
"""More digits are no length of anything; and int() refuses thousands of them with an error of its own."""

CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]{1,16})(?:[ \t]*;[\t\x20-\x7e\x80-\xff]*)?")
MAX_CHUNK_LINE = 1024
MAX_TRAILERS = 8192


class Buffer(Protocol):
    """Where waitress keeps a body: in memory, and from some size on in a temporary file."""

    def append(self, data: bytes) -> None: ...
    def getfile(self) -> Any: ...
    def __len__(self) -> int: ...


class Refusal:
    """What waitress answers in place of the application; it asks only for `to_response`."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    def to_response(self, ident: str | None = None) -> tuple[str, list[tuple[str, str]], bytes]:
        """Return status line, headers and body. `ident` names the server, and is of no use here."""
        return self.problem.status_line, self.problem.headers(), self.problem.body()


Judge = Callable[["StrictParser"], Problem | None]


class StrictParser(HTTPRequestParser):  # type: ignore[misc]
    """A request as it comes in; whatever could be read in two ways is refused.

    `judge` is asked once the header is there and the body is not: a problem that it returns refuses the
    request before its body is read.
    """

    refusal: Refusal | None = None
    headers_finished: bool
    completed: bool
    chunked: bool
    path = ""
    """Empty as long as it is not known, which for a refused request may be for ever."""
    body_rcv: Any
    header_plus: bytes
    content_length: int
    request_uri: str

    def __init__(
        self, adj: Any, judge: Callable[[StrictParser], Problem | None] = lambda request: None
    ) -> None:
        super().__init__(adj)
        self._judge = judge

    def received(self, data: bytes) -> int:
        """Take what belongs to this request, and return how much that was."""
        is_new = not self.headers_finished
        header = self.header_plus + data if is_new else b""
        if STRAY.match(header):
            self.refuse(400, "a request begins with its method, not with white space")
            self.error, self.completed = self.refusal, True
            return len(data)
        consumed: int = super().received(data)
        if is_new and self._is_awaited(len(data) - consumed) and (problem := self._judge(self)) is not None:
            self.error, self.completed = Refusal(problem), True
        if self.error is not None and not isinstance(self.error, Refusal):
            self.error = self.refusal or Refusal(self.explained(self.error, header))
        if self.completed:
            # A client is told to go on only while something of its request is still to come: waitress
            # would otherwise wait for the rest of a request that it has refused or that has no body.
            self.expect_continue = False
        return consumed

    def _is_awaited(self, at_hand: int) -> bool:
        """Whether the header was read and the body is still to come, apart from some bytes at hand."""
        return (
            self.headers_finished and not self.completed and (self.chunked or self.content_length > at_hand)
        )

    def parse_header(self, header_plus: bytes) -> None:
        """Read the request line and the header fields.

        Raises:
            ParsingError: they are not HTTP, or could be read in two ways.
        """
        self.check(header_plus)
        try:
            super().parse_header(header_plus)
        except ValueError as error:
            # A target such as `http://[::1/`, which urlsplit refuses in its own way.
            raise self.refuse(400, f"the request target is no URL: {error}") from error
        if match := ABSOLUTE.match(self.request_uri.encode("latin-1")):
            # It names the host, whatever the field Host says (RFC 9112, 3.2.2).
            self.headers["HOST"] = match[1].decode("latin-1")
            self.path = self.path or "/"
        options = {option.strip(" \t").lower() for option in self.headers.get("CONNECTION", "").split(",")}
        if "close" in options:
            # waitress knows the word when it stands alone.
            self.headers["CONNECTION"] = "close"
            self.connection_close = True
        if self.chunked:
            self.body_rcv = StrictChunks(self.body_rcv.getbuf())

    def check(self, header_plus: bytes) -> None:
        """Refuse what is ambiguous."""
        request_line, _, rest = header_plus.partition(b"\r\n")
        match = REQUEST_LINE.fullmatch(request_line)
        if match is None:
            raise self.refuse(400, "the request line is not `METHOD target HTTP/1.1`")
        version = match[3] + b"." + match[4]
        if version not in (b"1.0", b"1.1"):
            raise self.refuse(505, "only HTTP/1.1 and HTTP/1.0 are spoken here")
        self.check_target(match[1], match[2])

        fields: dict[bytes, list[bytes]] = {}
        lines = [line for line in rest.split(b"\r\n") if line]
        if len(lines) > MAX_FIELDS:
            raise self.refuse(431, f"at most {MAX_FIELDS} header fields are read")
        for line in lines:
            if line[:1] in (b" ", b"\t"):
                raise self.refuse(400, "a header field that goes on in the next line is not read")
            field = FIELD.fullmatch(line)
            if field is None:
                raise self.refuse(400, "a header line is not `Name: value`")
            fields.setdefault(field[1].lower(), []).append(field[2].strip(b" \t"))

        self.check_host(fields.get(b"host", []), version)
        self.check_length(fields.get(b"content-length", []))
        self.check_coding(fields.get(b"transfer-encoding", []), version)
        if b"content-length" in fields and b"transfer-encoding" in fields:
            raise self.refuse(400, "Content-Length and Transfer-Encoding exclude each other")
        if version == b"1.1" and any(value.lower() != b"100-continue" for value in fields.get(b"expect", [])):
            raise self.refuse(417, "the only expectation that can be met is 100-continue")

    def check_target(self, method: bytes, target: bytes) -> None:
        if target.startswith(b"/") or (method == b"OPTIONS" and target == b"*"):
            return
        match = ABSOLUTE.match(target)
        if match is None:
            raise self.refuse(400, "the request target is a path, or a URL with http or https")
        if not HOST.fullmatch(match[1]):
            raise self.refuse(400, "the host of the request target is not a name or an address")

    def check_host(self, hosts: list[bytes], version: bytes) -> None:
        if len(hosts) > 1 or (version == b"1.1" and not hosts):
            raise self.refuse(400, "a request has exactly one Host")
        if hosts and not HOST.fullmatch(hosts[0]):
            raise self.refuse(400, "Host is not a name or an address")

    def check_length(self, lengths: list[bytes]) -> None:
        if len(lengths) > 1:
            raise self.refuse(400, "a request has at most one Content-Length")
        if lengths and not (lengths[0].isdigit() and lengths[0].isascii()):
            raise self.refuse(400, "Content-Length is digits only")
        if lengths and len(lengths[0]) > MAX_LENGTH_DIGITS:
            raise self.refuse(413, "the body is too large")

    def check_coding(self, codings: list[bytes], version: bytes) -> None:
        if not codings:
            return
        if version != b"1.1":
            raise self.refuse(400, "HTTP/1.0 has no Transfer-Encoding")
        names = {name.strip(b" \t").lower() for value in codings for name in value.split(b",")}
        if names - {b"chunked", b""}:
            raise self.refuse(501, "the only transfer coding that is understood is chunked")
        if len(codings) > 1 or codings[0].lower() != b"chunked":
            raise self.refuse(400, "Transfer-Encoding is `chunked`, once")

    def refuse(self, status: int, detail: str) -> ParsingError:
        self.refusal = Refusal(Problem(status, detail))
        return ParsingError(detail)

    def explained(self, error: Any, header: bytes) -> Problem:
        """Return what to mend, for what waitress itself refuses; `header` is what has come of it."""
        if error.code == 413:
            detail = f"at most {self.adj.max_request_body_size - 1} bytes of a body are read"
            return Problem(413, detail)
        if error.code != 431:
            return Problem(error.code, str(error.body))
        limit = self.adj.max_request_header_size
        if b"\r\n" in header.lstrip(b"\r\n")[:limit]:
            return Problem(431, f"at most {limit} bytes of a header are read")
        return Problem(414, f"the request target is too long: at most {limit} bytes of a header are read")


class StrictChunks:
    """Decodes a chunked body; the interface is that of waitress's receivers.

    Lines end with CR LF and nothing else, sizes are hexadecimal digits, extensions and trailers
    are bounded and dropped.
    """

    def __init__(self, buffer: Buffer) -> None:
        self.buffer = buffer
        self.completed = False
        self.error: Refusal | None = None
        self._read = self._size
        self._line = b""
        self._left = 0
        self._trailers = 0

    def __len__(self) -> int:
        return len(self.buffer)

    def getfile(self) -> Any:
        return self.buffer.getfile()

    def getbuf(self) -> Buffer:
        return self.buffer

    def received(self, data: bytes) -> int:
        """Take what belongs to the body, and return how much that was; all, if it is broken."""
        at = 0
        while at < len(data) and not self.completed:
            at = self._read(data, at)
            if self.error is not None:
                return len(data)
        return at

    def _size(self, data: bytes, at: int) -> int:
        line, at = self._take_line(data, at, MAX_CHUNK_LINE)
        if line is None:
            return at
        match = CHUNK_LINE.fullmatch(line)
        if match is None:
            return self._refuse(at, "the size of a chunk is hexadecimal digits")
        self._left = int(match[1], 16)
        self._read = self._content if self._left else self._trailer
        return at

    def _content(self, data: bytes, at: int) -> int:
        piece = data[at : at + self._left]
        self.buffer.append(piece)
        self._left -= len(piece)
        if self._left == 0:
            self._read = self._end
        return at + len(piece)

    def _end(self, data: bytes, at: int) -> int:
        line, at = self._take_line(data, at, 2)
        if line is not None:
            self._read = self._size
            if line:
                return self._refuse(at, "a chunk does not end where its size says")
        return at

    def _trailer(self, data: bytes, at: int) -> int:
        line, at = self._take_line(data, at, MAX_TRAILERS - self._trailers)
        if line is None:
            return at
        self._trailers += len(line) + 2
        if not line:
            self.completed = True
        elif not FIELD.fullmatch(line):
            return self._refuse(at, "a trailer line is not `Name: value`")
        return at

    def _take_line(self, data: bytes, at: int, limit: int) -> tuple[bytes | None, int]:
        """Return a whole line without its end, or None if more is to come, and where to go on."""
        end = data.find(b"\n", at)
        stop = len(data) if end < 0 else end + 1
        if len(self._line) + stop - at > limit:
            return None, self._refuse(stop, "a line of the chunked body is not as it should be")
        self._line += data[at:stop]
        if end < 0:
            return None, stop
        line, self._line = self._line, b""
        if not line.endswith(b"\r\n") or b"\r" in line[:-2]:
            return None, self._refuse(stop, "lines of a chunked body end with CR LF")
        return line[:-2], stop

    def _refuse(self, at: int, detail: str) -> int:
        self.error = Refusal(Problem(400, detail))
        return at
