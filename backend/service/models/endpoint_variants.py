"""SageMaker endpoints as variants: parse their names, and add facts from AWS when an evaluation is submitted."""

from __future__ import annotations

import re
from urllib.parse import unquote

from backend.address import SAGEMAKER
from backend.domain.deploy.deployment import PREFIX, REGION
from backend.domain.errors import RequestError
from backend.domain.evaluation.document import Remote, Variant
from backend.domain.roles import Action
from backend.launchers import endpoint_lookup
from backend.present.source_names import short_name
from backend.service.machines import targets
from backend.service.workspace import Workspace
from backend.store import audit
from backend.store.audit import AuditFilter

ENDPOINT_NAME = re.compile(
    rf"{SAGEMAKER}:(?P<name>[A-Za-z0-9](-*[A-Za-z0-9]){{0,62}})(@(?P<region>{REGION}))?(#(?P<model>.+))?"
)
ACTIONS = (Action.DEPLOY, Action.UPDATE_ENDPOINT, Action.DELETE_ENDPOINT)
RECORDS_SEARCHED = 200
"""Rows of the audit trail that are searched."""
NOT_OURS = "Others reach this studio, so it calls only endpoints that it deployed, and `{}` is not one of them."


def is_endpoint(source: str) -> bool:
    return source.startswith(f"{SAGEMAKER}:")


def make_variant(workspace: Workspace, source: str) -> Variant:
    """Return the variant of `sagemaker:NAME[@REGION][#MODEL]` without asking AWS. NAME is AWS's name, or the name of an
    endpoint deployed from here. Raises RequestError, Refused."""
    match = ENDPOINT_NAME.fullmatch(source)
    if match is None:
        raise RequestError(
            f"`{source[:120]}` is no endpoint of SageMaker: write sagemaker:NAME, or sagemaker:NAME@REGION, with "
            "#MODEL behind it where the container calls its model other than `model`."
        )
    name = _full_name(workspace, match["name"])
    if workspace.settings.shared and not name.startswith(PREFIX):
        raise RequestError(NOT_OURS.format(name))
    region = match["region"] or endpoint_lookup.home_region()
    url, model = f"{SAGEMAKER}://{region}/{name}", unquote(match["model"] or "") or None
    return Variant(name=short_name(source), source=source, kind="url", url=url, served_name=model)


def _full_name(workspace: Workspace, name: str) -> str:
    """Return the name with our prefix if its last record here is a deployment or update."""
    if name.startswith(PREFIX):
        return name
    with workspace.store.read() as session:
        rows = audit.list_records(session, AuditFilter(actions=ACTIONS, words=name), limit=RECORDS_SEARCHED)
    last = next((row.action for row in rows if row.target == name), Action.DELETE_ENDPOINT)
    return name if last == Action.DELETE_ENDPOINT else PREFIX + name


def with_aws_facts(workspace: Workspace, variant: Variant) -> Variant:
    """Add current facts from AWS, the instances' price and the findings; other variants are returned unchanged.

    Raises NotFound, NotNow if it does not serve, RequestError, and the errors of AWS.
    """
    if not (variant.url or "").startswith(f"{SAGEMAKER}://"):
        return variant
    # 1. Ask AWS for the endpoint.
    region, _, name = (variant.url or "").removeprefix(f"{SAGEMAKER}://").partition("/")
    endpoint = endpoint_lookup.resolve_endpoint(name, region)
    if workspace.settings.shared and endpoint.id is None:
        raise RequestError(NOT_OURS.format(name))
    # 2. Add its price and its findings.
    price, where = _price(workspace, endpoint.instances)
    discount = 0.0 if price is None else workspace.settings.discount
    remote = Remote(
        endpoint=endpoint.name,
        region=region,
        artifact=endpoint.artifact,
        usd_per_hour=price,
        price_region=where,
        discount=discount,
        instances=", ".join(f"{count} x {kind}" for kind, count in endpoint.instances.items()) or "serverless",
        findings=tuple(finding.words for finding in endpoint_lookup.prove_endpoint(endpoint)),
    )
    return variant.model_copy(update={"remote": remote, "url": f"{SAGEMAKER}://{region}/{endpoint.name}"})


def _price(workspace: Workspace, instances: dict[str, int]) -> tuple[float | None, str | None]:
    """Return the hourly on-demand price of all instances together, and its region; None if one has no price."""
    rows = targets.hardwares(workspace).instances
    known = [rows[kind] for kind in instances if kind in rows and rows[kind].sagemaker_usd_per_hour is not None]
    if not instances or len(known) < len(instances):
        return None, None
    hour = sum((row.sagemaker_usd_per_hour or 0.0) * instances[row.name] for row in known)
    return hour or None, known[0].price_region
