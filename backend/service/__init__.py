"""The only door for screens and the command line: one module a noun, plain pydantic objects out.

from backend import service
from backend.service.jobs import jobs
from backend.service.models import models
workspace = service.open_workspace()
card = models.resolve(workspace, "starter")
latest = jobs.listing(workspace, limit=5)
"""

from backend.service.workspace import Workspace, open_home, open_workspace

__all__ = ["Workspace", "open_home", "open_workspace"]
