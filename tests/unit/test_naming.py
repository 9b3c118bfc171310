"""Names and docstrings of the source say what a thing holds or does, read from the syntax trees of every file.

CONTRIBUTING.md has the glossary that the names come from. Each rule below has a deliberate break that it must catch.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("backend", "app", "pages", "whetstone")
TEST_ROOMS = ("tests", "benchmarks")
"""Where names must say what they hold too; their docstrings and statements are not checked."""

EMPTY_NAMES = frozenset(
    ("asked", "beside", "found", "gave", "given", "gone", "got", "held", "kept", "lie", "lies", "look", "looks", "made")
    + ("meant", "of", "said", "seen", "stand", "stands", "taken", "told", "wanted")
)
"""Words that say nothing about what a name holds or does. Fields of records are exempt: they are keys of JSON."""

POOR_OPENINGS = ("Of ", "As ", "What ", "Whether ", "How ", "Where ", "Who ", "That ", "By ", "Since ", "Those ")
"""A docstring begins with a verb or a noun phrase; these openings lead to a riddle."""

MODULE = re.compile(r"\b(?:[a-z_]+/)*[a-z_]+\.py\b|\bbackend(?:\.[a-z_0-9]+)+")
VENDOR_FILES = frozenset(
    (
        "auto_awq.py",
        "auto_clip.py",
        "compressed_tensors.py",
        "inference_demo.py",
        "kv_cache_utils.py",
        "marlin_utils.py",
    )
    + ("modeling_auto.py", "modelopt.py", "scalar_type.py", "weight_utils.py", "zentorch.py")
    + ("worker/neuronx_distributed_model_loader.py",)
)
"""Files of vLLM, AutoAWQ and others that docstrings cite as a source."""

LONGEST_TEST_NAME = 79
"""Characters of a test's name: it says what is proven, details are in the test."""

FORMATTER_OFF = re.compile(r"#\s*fmt:\s*(?:off|skip)")


def words(name: str) -> str:
    """Return the name without its underscores, in lower case: `_Kept` and `kept_` are `kept`."""
    return name.strip("_").lower()


def defined_names(tree: ast.AST) -> Iterator[tuple[int, str, str]]:
    """Yield line, kind and name of every function, class, parameter, local and constant of a file."""
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    fields = {id(entry.target) for node in classes for entry in node.body if isinstance(entry, ast.AnnAssign)}
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.lineno, "function", node.name
            arguments = node.args
            for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
                yield argument.lineno, "parameter", argument.arg
        elif isinstance(node, ast.ClassDef):
            yield node.lineno, "class", node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and id(node) not in fields:
            yield node.lineno, "local", node.id


def docstrings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and text of every docstring, those of attributes included."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else []:
            value = statement.value if isinstance(statement, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield statement.lineno, value.value


def is_nested_condition(node: ast.IfExp) -> bool:
    """Tell whether a conditional expression holds another as one of its three parts."""
    return any(isinstance(part, ast.IfExp) for part in (node.test, node.body, node.orelse))


def unknown_modules(text: str, modules: set[str]) -> list[str]:
    """Return the modules that a docstring names and that `modules`, paths and dotted names, does not have.

    A path counts if it begins with one of our folders; those of other projects are cited as sources.
    """
    named = [match.group() for match in MODULE.finditer(text)]
    if not named:  # of most docstrings
        return []
    own = {name for name in modules if "/" not in name and "." not in name}
    return [
        name
        for name in named
        if name not in modules | VENDOR_FILES and ("/" not in name or name.partition("/")[0] in own)
    ]


def module_names(root: Path) -> set[str]:
    """Return every way in which a docstring may name a file, folder or definition of the source."""
    names: set[str] = set()
    files = [file for folder in (*ROOMS, "tests", "benchmarks") for file in (root / folder).rglob("*.py")]
    for file in files:
        parts = file.relative_to(root).parts
        names |= {"/".join(parts[start:]) for start in range(len(parts))}
        names |= set(parts[:-1]) if parts[0] in ROOMS else set()
        dotted = ".".join(file.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
        names.add(dotted)
        if parts[0] == "backend":
            top_level = ast.parse(file.read_text()).body
            defined = [node.name for node in top_level if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
            names |= {f"{dotted}.{name}" for name in defined}
    return names


def name_breaks(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for line, kind, name in defined_names(tree):
        if words(name) in EMPTY_NAMES:
            yield line, f"the {kind} `{name}` says nothing about what it holds or does"


def long_test_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for line, kind, name in defined_names(tree):
        if kind == "function" and name.startswith("test_") and len(name) > LONGEST_TEST_NAME:
            yield line, f"the name of the test has {len(name)} characters, at most {LONGEST_TEST_NAME} are read"


def docstring_breaks(tree: ast.AST, modules: set[str]) -> Iterator[tuple[int, str]]:
    for line, text in docstrings(tree):
        if text.startswith(POOR_OPENINGS):
            yield line, f"the docstring begins with {text.split()[0]!r}, not with a verb or a noun"
        for name in unknown_modules(text, modules):
            yield line, f"the docstring names {name}, which does not exist"


def statement_breaks(tree: ast.AST, source: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.IfExp) and is_nested_condition(node):
            yield node.lineno, "a conditional expression inside another"
    for line, text in enumerate(source.splitlines(), 1):
        if FORMATTER_OFF.search(text):
            yield line, "the formatter is switched off"


def naming_breaks(path: str, source: str, modules: set[str]) -> list[str]:
    """Return what is wrong with a file's names, docstrings and statements, a sentence each."""
    tree = ast.parse(source)
    breaks = [*name_breaks(tree), *docstring_breaks(tree, modules), *statement_breaks(tree, source)]
    if words(Path(path).stem) in EMPTY_NAMES:
        breaks.append((1, "the module's name says nothing about what it holds"))
    return [f"{path}:{line}: {sentence}" for line, sentence in sorted(breaks)]


def test_every_name_and_docstring_says_what_it_is() -> None:
    modules = module_names(ROOT)
    breaks = [
        sentence
        for room in ROOMS
        for file in sorted((ROOT / room).rglob("*.py"))
        for sentence in naming_breaks(file.relative_to(ROOT).as_posix(), file.read_text(), modules)
    ]
    assert not breaks, "\n" + "\n".join(breaks)


def test_names_in_tests_and_benchmarks_say_what_they_hold() -> None:
    breaks = [
        f"{file.relative_to(ROOT)}:{line}: {sentence}"
        for folder in TEST_ROOMS
        for file in sorted((ROOT / folder).rglob("*.py"))
        for line, sentence in name_breaks(ast.parse(file.read_text()))
    ]
    assert not breaks, "\n" + "\n".join(breaks)


def test_every_test_has_a_name_that_is_read() -> None:
    breaks = [
        f"{file.relative_to(ROOT)}:{line}: {sentence}"
        for file in sorted((ROOT / "tests").rglob("*.py"))
        for line, sentence in long_test_names(ast.parse(file.read_text()))
    ]
    assert not breaks, "\n" + "\n".join(breaks)


def test_a_long_name_of_a_test_is_caught() -> None:
    [(line, sentence)] = long_test_names(ast.parse(f"def test_{'a' * 75}(): ..."))
    assert (line, sentence[:40]) == (1, "the name of the test has 80 characters, "[:40])


@pytest.mark.parametrize(
    ("path", "source", "sentence"),
    [
        ("backend/kept.py", "", "backend/kept.py:1: the module's name says nothing"),
        ("a.py", "def _told(): ...", "the function `_told` says nothing"),
        ("a.py", "class Held: ...", "the class `Held` says nothing"),
        ("a.py", "def read(asked): ...", "the parameter `asked` says nothing"),
        ("a.py", "def read():\n    found = 1", "a.py:2: the local `found` says nothing"),
        ("a.py", 'def read():\n    """Of a file, its text."""', "begins with 'Of'"),
        ("a.py", 'LIMIT = 1\n"""As many as there are."""', "begins with 'As'"),
        ("a.py", '"""See `backend/gone_away.py`."""', "names backend/gone_away.py, which does not exist"),
        ("a.py", '"""See backend.store.gone_away."""', "names backend.store.gone_away, which does not exist"),
        ("a.py", "size = 1 if a else 2 if b else 3", "a.py:1: a conditional expression inside another"),
        ("a.py", "size = {1: 2}  # fmt: skip", "a.py:1: the formatter is switched off"),
    ],
)
def test_each_rule_catches_a_break(path: str, source: str, sentence: str) -> None:
    breaks = naming_breaks(path, source, {"backend", "backend.store"})
    assert len(breaks) == 1 and sentence in breaks[0]


def test_plain_source_breaks_no_rule() -> None:
    source = '"""Reads rows."""\n\ndef read_rows(path):\n    """Return the rows."""\n    rows = [1]\n    return rows\n'
    assert naming_breaks("backend/rows.py", source, set()) == []
