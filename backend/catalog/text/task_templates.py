"""Reads a task's templates in the sandbox: Jinja computes what is constant while it reads them.

`{{ 9**(9**9) }}` never returns, and `{{ 'a' * 1500000000 }}` takes gigabytes, though no template is filled in here.
"""

from __future__ import annotations

import jinja2
import jinja2.meta

NAMES, PROBLEM = "names", "problem"


def read(templates: list[str]) -> list[dict[str, list[str] | str]]:
    """For each template the `names` that it takes from a row, sorted, or the `problem` why it is none."""
    return [_read(template) for template in templates]


def _read(template: str) -> dict[str, list[str] | str]:
    try:
        return {NAMES: sorted(jinja2.meta.find_undeclared_variables(jinja2.Environment().parse(template)))}
    except jinja2.TemplateSyntaxError as error:
        return {PROBLEM: error.message or "it cannot be read"}
    except RecursionError:
        return {PROBLEM: "it is nested too deeply"}
