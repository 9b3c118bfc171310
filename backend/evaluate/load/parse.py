"""Turns stored bytes into request records after the run: HTTP framing, events, content, tokens, and the time of each.

The time of an event is that of the socket read that brought its last byte; in AWS's event stream, the last byte of the
message around it. Knows nothing of connections.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from dataclasses import dataclass, field
from itertools import accumulate

from backend.domain.load import aws_event_stream, openai_json, sagemaker_errors
from backend.domain.load.openai_json import NotAnAnswer, ServerReportedError, Usage
from backend.domain.load.records import RequestRecord, UsageRung
from backend.domain.load.server_events import DONE, parse_server_events
from backend.evaluate.load.framing import Head, Malformed, body_segments, read_head
from backend.evaluate.load.stream import Exchange

ERROR_LENGTH = 300
AS_SENT = ("index", "stream", "prompt", "warm", "intended", "turn", "slice", "streamed", "sent")
AS_COUNTED = ("prompt_tokens", "cached_tokens", "output_tokens")
"""Fields that a record copies, from the exchange and from its answer."""
TAIL_READS, TAIL_BYTES = 16, 4096
_ENDING = re.compile(rb'\[DONE\]|"finish_reason": ?"|"error"|^error:|event: ?error', re.MULTILINE)
"""Matches the last bytes of an answer that may have ended."""


class _Broken(ValueError):
    """The answer is not what the interface promises; the message is the record's error, `status` its kind."""

    def __init__(self, status: str, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(slots=True)
class _Answer:
    """The parts of an answer read so far."""

    text: list[str] = field(default_factory=list)
    """Everything generated, in order: reasoning, words and tool calls."""
    words: list[str] = field(default_factory=list)
    """The assistant's words, without reasoning and tool calls."""
    times: list[float] = field(default_factory=list)
    tokens: list[int | None] = field(default_factory=list)
    sends: list[tuple[int, int]] = field(default_factory=list)
    """(socket read, server send) of each content chunk."""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    finish_reason: str | None = None
    done: bool = False


class ReceivedAnswer:
    """The stored bytes of one answer and the time at which each came.

    `body` is the body without chunk framing and without the framing of AWS's event stream; `broken` is the reason why
    such a stream ended early, if it gives one. Raises Malformed.
    """

    def __init__(self, exchange: Exchange) -> None:
        raw = b"".join(exchange.reads)
        self._times = exchange.times
        self._read_ends = list(accumulate(len(read) for read in exchange.reads))
        self.head: Head | None = read_head(raw)
        self._segments = body_segments(raw, self.head) if self.head else []
        self._body_ends = list(accumulate(end - start for start, end in self._segments))
        self.body = b"".join(raw[start:end] for start, end in self._segments)
        self.broken: str | None = None
        self._parts: tuple[list[int], list[int]] | None = None
        """For the payloads of an event stream: where each ends in `body`, and where its message ended in the stream."""
        if self.head is not None and self.kind == aws_event_stream.CONTENT_TYPE:
            self._unwrap()

    @property
    def kind(self) -> str:
        """Return the content type of the answer; for an event stream, that of the answer inside."""
        fields = self.head.fields if self.head else {}
        name = "content-type" if self._parts is None else "x-amzn-sagemaker-content-type"
        return fields.get(name, "").partition(";")[0].strip().lower()

    def _unwrap(self) -> None:
        payloads, ends = [], []
        try:
            for message in aws_event_stream.parse_messages(self.body):
                if message.failure:
                    self.broken = sagemaker_errors.broken_answer(*message.failure)
                    break
                payloads.append(message.payload)
                ends.append(message.end)
        except aws_event_stream.Malformed as error:
            raise Malformed(str(error)) from None
        self.body = b"".join(payloads)
        self._parts = list(accumulate(map(len, payloads))), ends

    def _outer(self, end: int) -> int:
        """Return the position in the body as sent at which `body` was complete up to `end`."""
        return end if self._parts is None else self._parts[1][bisect_left(self._parts[0], end)]

    def send_of(self, end: int) -> int:
        """Return the number of the HTTP chunk that has body byte `end` - 1."""
        return bisect_right(self._body_ends, self._outer(end) - 1)

    def read_of(self, end: int) -> int:
        """Return the number of the socket read that brought body byte `end` - 1."""
        segment = self.send_of(end)
        before_next = self._body_ends[segment] - self._outer(end)
        return bisect_right(self._read_ends, self._segments[segment][1] - before_next - 1)

    def time_of(self, end: int) -> float:
        return self._times[self.read_of(end)]


def make_record(exchange: Exchange, secret: str | None = None, *, sagemaker: bool = False) -> RequestRecord:
    """Return the record of one finished exchange, whatever the server sent.

    `secret` is removed from the server's words; `sagemaker`: refusals are read as SageMaker writes them.
    """
    # Read the answer as far as it goes; what stops the reading becomes the status.
    answer = _Answer()
    status, error = "ok", exchange.error
    try:
        _read(exchange, answer, sagemaker)
    except Malformed as failure:
        status, error = "malformed", str(failure)
    except NotAnAnswer as failure:
        status, error = "malformed", str(failure)
    except ServerReportedError as failure:
        status, error = "server_error", str(failure)
    except _Broken as failure:
        status, error = failure.status, str(failure)
    # A request that was ended early has the status of its end.
    if exchange.status != "done":
        status, error = exchange.status or "truncated", exchange.error
    return _record(exchange, answer, status, _short(error, secret))


def assistant_words(exchange: Exchange) -> str:
    """Return what the assistant says in a complete answer, for the next turn.

    Without reasoning and tool calls; empty for a failed answer.
    """
    answer = _Answer()
    try:
        _read(exchange, answer, sagemaker=False)
    except (Malformed, NotAnAnswer, ServerReportedError, _Broken):
        return ""
    return _clean("".join(answer.words))


def is_over(exchange: Exchange, *, late: bool) -> bool:
    """Tell whether an answer under way is complete: by its end mark, a finish reason with usage, or an error.

    `late`: its time is up, and a finish reason alone is enough. If the last bytes show no end, nothing else is read,
    since this runs while other answers are measured.
    """
    # Look at the last bytes only, unless the time is up.
    tail = b"".join(exchange.reads[-TAIL_READS:])[-TAIL_BYTES:]
    if not late and not _ENDING.search(tail):
        return False
    # Read the whole answer and see whether it is complete.
    answer = _Answer()
    try:
        _read(exchange, answer, sagemaker=False)
    except ServerReportedError:
        return True
    except (Malformed, NotAnAnswer, _Broken):
        return False
    return answer.done or (answer.finish_reason is not None and (late or answer.output_tokens is not None))


def _read(exchange: Exchange, answer: _Answer, sagemaker: bool) -> None:
    """Fill `answer` as far as the bytes go. Raises Malformed, NotAnAnswer, ServerReportedError or _Broken."""
    # A response that is cut off in its head, or refuses, has no answer to read.
    wire = ReceivedAnswer(exchange)
    head = wire.head
    if head is None:
        raise _Broken("truncated", "the answer's head is incomplete")
    if head.status != 200:
        if sagemaker:
            message = sagemaker_errors.describe_refusal(head.status, head.fields, wire.body)
        else:
            message = openai_json.server_message(wire.body)
        raise _Broken(f"http_{head.status}", message)
    # Read the body by its content type.
    kind = wire.kind
    if kind == "application/json" and wire.broken is None:
        _take(wire.body, "", len(wire.body), wire, answer)
        answer.done = True
    elif kind in {"text/event-stream", ""} or wire.broken is not None:
        _take_events(wire, answer)
    else:
        raise _Broken("malformed", f"the answer is {kind}, not an event stream: {openai_json.excerpt(wire.body)}")


def _take_events(wire: ReceivedAnswer, answer: _Answer) -> None:
    for name, data, end in parse_server_events(wire.body):
        if data.strip() == DONE:
            answer.done = True
            return
        _take(data, name, end, wire, answer)
    if wire.broken is not None:
        raise _Broken("server_error", wire.broken)
    if answer.finish_reason is None:
        whole = bool(answer.text) or not wire.body.strip()
        raise _Broken(
            "truncated" if whole else "malformed", "the answer ended without [DONE] and without a finish reason"
        )


def _take(data: bytes, name: str, end: int, wire: ReceivedAnswer, answer: _Answer) -> None:
    """Add one event to the answer, or a whole answer: its content, time and tokens."""
    chunk = openai_json.parse_event(data, name)
    if chunk is None:
        return
    answer.finish_reason = chunk.finish_reason or answer.finish_reason
    counted = None
    if chunk.usage is not None:
        counted = _take_usage(chunk.usage, answer)
    if content := chunk.content:
        answer.text.append(content)
        answer.words.append(chunk.words)
        answer.times.append(wire.time_of(end))
        answer.tokens.append(counted)
        answer.sends.append((wire.read_of(end), wire.send_of(end)))


def _take_usage(usage: Usage, answer: _Answer) -> int | None:
    """Update the counts; return the running count of output tokens, or None if the event has none."""
    prompt, cached, output = usage
    answer.prompt_tokens = answer.prompt_tokens if prompt is None else prompt
    answer.cached_tokens = answer.cached_tokens if cached is None else cached
    answer.output_tokens = answer.output_tokens if output is None else output
    return output


def _token_counts(answer: _Answer) -> tuple[tuple[float, ...], UsageRung]:
    """Return the tokens up to each content chunk, and how they are known.

    With only a total: one per chunk if the numbers agree (allowing for a last token without text), else the total
    spread evenly.
    """
    chunks, total = len(answer.tokens), answer.output_tokens
    if total is None or not chunks:
        return (), "none"
    counts = [count for count in answer.tokens if count is not None]
    if chunks > 1 and len(counts) == chunks and counts == sorted(counts) and counts[-1] <= total:
        return tuple(map(float, counts)), "continuous"
    if total in {chunks, chunks + 1}:
        return tuple(float(n) for n in range(1, chunks + 1)), "final"
    return tuple(total * n / chunks for n in range(1, chunks + 1)), "final"


def _record(exchange: Exchange, answer: _Answer, status: str, error: str | None) -> RequestRecord:
    tokens, source = _token_counts(answer)
    sends_of_a_read = Counter(read for read, _ in set(answer.sends))
    end = exchange.end if exchange.end is not None else exchange.intended
    return RequestRecord(
        **{name: getattr(exchange, name) for name in AS_SENT},
        **{name: getattr(answer, name) for name in AS_COUNTED},
        clock="intended" if exchange.due else "sent",
        session=exchange.conversation.number if exchange.conversation else None,
        first_content=answer.times[0] if answer.times else None,
        last_content=answer.times[-1] if answer.times else None,
        end=end,
        chunk_times=tuple(answer.times),
        chunk_tokens=tokens,
        token_times=source,
        status=status,
        error=error,
        text=_clean("".join(answer.text)),
        finish_reason=_clean(answer.finish_reason) if answer.finish_reason else None,
        reads=len(sends_of_a_read),
        coalesced=sum(sends > 1 for sends in sends_of_a_read.values()),
    )


def _short(error: str | None, secret: str | None) -> str | None:
    if error is None:
        return None
    return _clean(error.replace(secret, "***") if secret else error)[:ERROR_LENGTH]


def _clean(text: str) -> str:
    """Join pairs of surrogates, also across chunks, and replace single ones: JSON may have them, UTF-8 may not."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
