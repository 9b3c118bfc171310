"""YAML of a recipe to plain data, strictly: safe types, no anchors or aliases, no key twice, nothing large.

An alias lets a few lines stand for billions of values, and a recipe never needs one.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import yaml

from backend.domain.errors import InvalidRecipe

MAX_BYTES = 100_000


class _Strict(yaml.SafeLoader):
    """PyYAML's safe loader, without what a recipe has no use for."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if getattr(event, "anchor", None) is not None:
            raise yaml.MarkedYAMLError(problem="a recipe has no anchors (&) or aliases (*)", problem_mark=event.start_mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"`{key.value[:60]}` stands there twice", problem_mark=key.start_mark)
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


def read(text: str, *, what: str = "recipe", most: int = MAX_BYTES) -> Any:
    """The document as plain data. `what` is what the sentences call it, `most` its characters. Raises InvalidRecipe naming line
    and column."""
    if len(text) > most:
        raise InvalidRecipe(f"The {what} has more than {most // 1000} kB: a recipe has a few lines.")
    try:
        return yaml.load(text, Loader=_Strict)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "somewhere"
        advice = ": indent with spaces." if "'\\t'" in str(error.problem) else "."
        raise InvalidRecipe(f"The {what} is not valid YAML ({where}: {error.problem}){advice}") from None
    except RecursionError:
        raise InvalidRecipe(f"The {what} is nested too deeply: a recipe has steps and their options, and no more.") from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        raise InvalidRecipe(f"The {what} is not valid YAML: {str(error).splitlines()[0][:200]}.") from None
