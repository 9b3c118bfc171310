"""The only door for screens and the command line: one module a noun, plain pydantic objects out.

from backend import service
workspace = service.open_workspace()
service.jobs.show(workspace, "j-...")
"""

from backend.service.workspace import Workspace, open_workspace

__all__ = ["Workspace", "open_workspace"]
