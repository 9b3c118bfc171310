"""Signature Version 4 as AWS checks it, by its published steps and without botocore, for credentials whose secret is
`s`."""

from __future__ import annotations

import hashlib
import hmac
import re
from urllib.parse import quote

from tests.fakes.sagemaker.account import Refused, Request

SECRET = "s"
PARTS = re.compile(
    r"AWS4-HMAC-SHA256 "
    r"Credential=(?P<key>[^/]+)/(?P<scope>(?P<day>\d{8})/(?P<region>[^/]+)/(?P<service>[^/]+)/aws4_request), ?"
    r"SignedHeaders=(?P<signed>[^,]+), ?Signature=(?P<signature>[0-9a-f]{64})"
)


def check(request: Request, service: str = "sagemaker") -> None:
    """Raises Refused for a request that is not signed, or not as it came."""
    fields = {name.lower(): value for name, value in request.headers.items()}
    match = PARTS.fullmatch(fields.get("authorization", ""))
    if match is None or match["service"] != service:
        raise Refused("MissingAuthenticationTokenException", "Missing Authentication Token", 403)
    names = match["signed"].split(";")
    if "host" not in names or any(name not in fields for name in names):
        raise Refused("InvalidSignatureException", "A header that was signed did not come", 403)
    lines = "".join(f"{name}:{' '.join(fields[name].split())}\n" for name in names)
    payload = hashlib.sha256(request.body).hexdigest()
    canonical = f"{request.method}\n{quote(request.path, safe='/~')}\n\n{lines}\n{match['signed']}\n{payload}"
    hashed = hashlib.sha256(canonical.encode()).hexdigest()
    to_sign = f"AWS4-HMAC-SHA256\n{fields['x-amz-date']}\n{match['scope']}\n{hashed}"
    key = f"AWS4{SECRET}".encode()
    for part in (match["day"], match["region"], service, "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    if hmac.digest(key, to_sign.encode(), "sha256").hex() != match["signature"]:
        raise Refused("InvalidSignatureException", "The request signature we calculated does not match", 403)
