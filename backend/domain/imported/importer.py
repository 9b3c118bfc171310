"""From the bytes of one or several files to an ImportedResult: which tool wrote them, and whether they belong together.
Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

from backend.domain.errors import InvalidImport
from backend.domain.imported import guidellm, unsupported_tools, vllm
from backend.domain.imported.imported_result import Definition, FileContents, ImportedLevel, ImportedResult

ADVICE = "give the JSON of GuideLLM 0.8 or of `vllm bench serve --save-result`"
MAX_BYTES = 200_000_000


def parse_results(files: Sequence[tuple[str, bytes]]) -> ImportedResult:
    """One result of (name, content) of one tool and model: vLLM's bench writes a file a level. Raises InvalidImport."""
    # 1. Read the files, which must be of one run.
    if not files:
        raise InvalidImport(f"No file was given: {ADVICE}.")
    parts = [part for name, content in files for part in _contents(PurePath(name).name, content)]
    first = parts[0]
    for other in parts[1:]:
        if (other.tool, other.version, other.model) != (first.tool, first.version, first.model):
            raise InvalidImport(
                f"These files are of different runs ({_describe_run(first)}; {_describe_run(other)}): "
                "import those of one tool and model at a time."
            )
    # 2. Join what they say; the id is made of their content alone.
    digest = hashlib.sha256(b"".join(sorted(hashlib.sha256(content).digest() for _, content in files))).hexdigest()
    levels = tuple(sorted((level for part in parts for level in part.levels), key=lambda level: level.load))
    moments = sorted(part.measured_at for part in parts if part.measured_at)
    return ImportedResult(
        id=f"b-{digest[:10]}",
        name=f"{first.model} ({first.tool})",
        tool=first.tool,
        version=first.version,
        model=first.model,
        measured_at=moments[0] if moments else None,
        files=tuple(PurePath(name).name for name, _ in files),
        sha256=digest,
        levels=levels,
        definitions=_measured_definitions([definition for part in parts for definition in part.definitions], levels),
        notes=tuple(dict.fromkeys(note for part in parts for note in part.notes)),
    )


def parse_results_to_json(files: Sequence[tuple[str, bytes]]) -> bytes:
    """Return the result of `parse_results` as JSON, for a child process. Raises InvalidImport."""
    return parse_results(files).model_dump_json().encode()


def _describe_run(contents: FileContents) -> str:
    return f"{contents.tool}{f' {contents.version}' if contents.version else ''} of {contents.model}"


def _measured_definitions(definitions: Sequence[Definition], levels: Sequence[ImportedLevel]) -> tuple[Definition, ...]:
    """Return the definitions, without repeats, of the metrics that some level has."""
    return tuple(
        definition
        for definition in dict.fromkeys(definitions)
        if any(getattr(level, definition.metric) is not None for level in levels)
    )


def _contents(name: str, content: bytes) -> list[FileContents]:
    if len(content) > MAX_BYTES:
        raise InvalidImport(
            f"{name} has more than {MAX_BYTES // 1_000_000} MB: save the result without its single requests."
        )
    return [_read(name, document) for document in _documents(name, content)]


def _read(name: str, document: Any) -> FileContents:
    try:
        if guidellm.is_report(document):
            return guidellm.parse_report(name, document)
        if vllm.is_result(document):
            return vllm.parse_result(name, document)
    except (ValueError, OverflowError):  # a figure below zero or not finite, found when the level was made
        raise InvalidImport(f"{name} holds a figure that is below zero or not a number: write it anew.") from None
    tool = unsupported_tools.find_unsupported_tool(document)
    if tool is not None:
        raise InvalidImport(f"{name} is a result of {tool}, which is not read here: {unsupported_tools.INSTEAD}.")
    raise InvalidImport(f"{name} is JSON, but no result of a load generator that is known here: {ADVICE}.")


def _documents(name: str, content: bytes) -> list[Any]:
    """One, or with vLLM's `--append-result` one a line."""
    # 1. The text.
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InvalidImport(f"{name} is not text: {ADVICE}.") from None
    # 2. One document, or one a line.
    try:
        return [json.loads(text)]
    except (ValueError, RecursionError) as whole:
        lines = [line for line in text.splitlines() if line.strip()]
        try:
            documents = [json.loads(line) for line in lines]
        except (ValueError, RecursionError):
            where = f" (line {whole.lineno})" if isinstance(whole, json.JSONDecodeError) else ""
            raise InvalidImport(f"{name} is not complete JSON{where}: {ADVICE}.") from None
    if not documents:
        raise InvalidImport(f"{name} is empty: {ADVICE}.")
    return documents
