"""Requests to endpoints in service, signed one by one (Signature Version 4): for whoever sends and reads them itself.

botocore finds where the region's runtime is, and the credentials, which it renews where they can be; it neither sends
nor reads anything here, since the load generator stamps each read of the socket. Knows nothing of what is asked.
"""

from __future__ import annotations

from backend.aws.sagemaker import Service

SERVICE, SIGNED_AS = "sagemaker-runtime", "sagemaker"


class Signer:
    """Signs requests for one region. Raises AccessRefused where there are no credentials, and for a region that does
    not exist Refused."""

    def __init__(self, region: str) -> None:
        from botocore.exceptions import NoCredentialsError
        from botocore.session import get_session

        self._service, self._region = Service(SERVICE, region), region
        with self._service.explained():
            self.url = str(self._service.client.meta.endpoint_url).rstrip("/")
            self._credentials = get_session().get_credentials()
            if self._credentials is None:
                raise NoCredentialsError
            self._credentials.get_frozen_credentials()  # those of a role are fetched now, not under load

    def headers(self, path: str, body: bytes, fields: dict[str, str]) -> dict[str, str]:
        """`fields` and those that sign them, for a POST of `body` to `path`; Host and Content-Length are the
        sender's."""
        from botocore.auth import SigV4Auth
        from botocore.awsrequest import AWSRequest

        with self._service.explained():
            request = AWSRequest("POST", self.url + path, headers=fields, data=body)
            SigV4Auth(self._credentials.get_frozen_credentials(), SIGNED_AS, self._region).add_auth(request)
        return dict(request.headers.items())


def home_region() -> str:
    """Return the region of the environment, without opening a service. Raises Refused if it names none."""
    from botocore.exceptions import NoRegionError
    from botocore.session import get_session

    with Service(SERVICE).explained():
        region = get_session().get_config_variable("region")
        if region is None:
            raise NoRegionError
    return str(region)
