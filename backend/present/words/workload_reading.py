"""Sentences on how a workload was read, for a terminal, a page and a report. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from backend.domain.evaluation.document import EvaluateOptions, Evaluation
from backend.domain.figures import counted, span
from backend.domain.workload.generators import LONGER_WORKLOAD
from backend.domain.workload.row_report import ReadReport, row_count_words, unused_reasons
from backend.domain.workload.trace_times import MOMENTS


def workload_sentences(
    requested: EvaluateOptions, chosen: EvaluateOptions, prompts: int, reading: ReadReport | None
) -> list[str]:
    """Return the sentences to show before the load starts; `requested` are the options as the person entered them."""
    sentences = list(read_words(prompts, reading, traced=chosen.trace, forced=bool(chosen.ignore_eos)))
    if "workload" not in requested.model_fields_set and chosen.workload == LONGER_WORKLOAD:
        sentences.insert(
            0,
            f"The bundled workload has too few prompts for this load, so {LONGER_WORKLOAD} is used: "
            f"{prompts:,} generated prompts.",
        )
    return sentences


def read_words(prompts: int, reading: ReadReport | None, *, traced: bool, forced: bool = False) -> Iterator[str]:
    """Yield a sentence for each thing that a reader must know; none if every row is used unchanged.

    `traced`: the load is a replay; `forced`: answers have exactly the requested length.
    """
    # What is not used of the file.
    if reading is None:
        return
    if reading.left_out:
        yield (
            f"{reading.left_out:,} of {row_count_words(reading)} cannot be used and "
            f"{'is' if reading.left_out == 1 else 'are'} left out ({unused_reasons(reading)})."
        )
    if reading.settings_left_out:
        yield f"Only texts are sent: {', '.join(reading.settings_left_out)} of the requests are left out."
    # How the used rows become requests.
    if reading.lengths is not None:
        yield _lengths(reading, forced)
    if traced and reading.seconds is not None:
        yield f"{counted(prompts, 'request')} over {span(reading.seconds)} ({_times(reading)})."


def document_sentences(evaluation: Evaluation) -> list[str]:
    """Return how the workload of an evaluation was read."""
    options, summary = evaluation.options, evaluation.workload
    return list(read_words(summary.prompts, summary.reading, traced=options.trace, forced=bool(options.ignore_eos)))


def _times(reading: ReadReport) -> str:
    return "its times are dates" if reading.times == MOMENTS else f"timestamps read as {reading.times}"


def _lengths(reading: ReadReport, forced: bool) -> str:
    """Return how the prompts of a trace of lengths are made, and what they share."""
    # How long the prompts are, and how exactly that is known.
    low, high = reading.lengths or (0, 0)
    extent = f"{low:,} tokens" if low == high else f"{low:,} to {high:,} tokens"
    if reading.exact_lengths:
        precision = "counted by the model's tokenizer"
    else:
        precision = "approximate, at four characters per token, since there is no tokenizer here"
    # What they share, and how long the answers are.
    shared = (
        f"they share prefixes as its hash_ids say, in blocks of {reading.block_size:,} tokens"
        if reading.block_size
        else "each begins differently"
    )
    answers = "" if forced else " An answer may be shorter than recorded, unless the end token is ignored."
    return (
        f"The workload gives lengths and no text: prompts of {extent} are generated ({precision}); {shared}.{answers}"
    )
