"""The permissions: roles, the actor that a workspace acts for, and the table of every action that changes something.

A viewer reads everything and changes nothing. An operator submits, and changes what is theirs. An admin does all.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal, NamedTuple

from backend.domain.frozen import Frozen


class Role(StrEnum):
    """Roles, from the least rights to the most."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"

    @property
    def rank(self) -> int:
        return list(Role).index(self)


Origin = Literal["page", "command line", "supervisor"]
"""The source of a change."""
SubjectKind = Literal[
    "job",
    "artifact",
    "evaluation",
    "preset",
    "model",
    "file",
    "engine",
    "prices",
    "machine",
    "row",
    "endpoint",
    "gateway key",
    "local endpoint",
]


class Actor(Frozen):
    """The person who acts: `name` owns what they make. `role` None: the person has no role."""

    name: str
    role: Role | None = Role.ADMIN
    origin: Origin = "command line"


class PermissionRule(NamedTuple):
    """The rule of who may do one action. `least`: the lowest role; `own`: an operator may only change what is theirs.

    `words` continue "may not".
    """

    least: Role
    kind: SubjectKind
    words: str
    own: bool = False


class Action(StrEnum):
    """Everything that a person can change; `RULES` says who may."""

    SUBMIT = "submit"
    CANCEL = "cancel"
    RESUME = "resume"
    MOVE = "move to the front"
    PRIORITIZE = "change priority"
    RELEASE = "release"
    DRAIN = "drain supervisor"
    DROP_KEPT = "drop what a job keeps"
    DELETE_ARTIFACT = "delete artifact"
    COLLECT = "remove what nothing names"
    SAVE_PRESET = "save preset"
    REPLACE_PRESET = "replace preset"
    REMOVE_PRESET = "remove preset"
    REMEMBER_MODEL = "import model"
    REPLACE_MODEL = "import model again"
    FORGET_MODEL = "forget model"
    UPLOAD = "upload"
    GET_TASK = "get task"
    ADD_RESULT = "add result"
    REMOVE_RESULT = "remove result"
    REMOVE_ENGINE = "remove engine"
    INSTALL_FROM_INDEX = "install engine from index"
    REFRESH_PRICES = "refresh prices"
    MEASURE = "measure machine"
    REMOVE_DAMAGED = "remove damaged row"
    ASK = "ask endpoint"
    DEPLOY = "deploy"
    UPDATE_ENDPOINT = "update endpoint"
    DELETE_ENDPOINT = "delete endpoint"
    ADD_ENDPOINT = "add local endpoint"
    START_ENDPOINT = "start local endpoint"
    STOP_ENDPOINT = "stop local endpoint"
    REMOVE_ENDPOINT = "remove local endpoint"
    ADD_KEY = "add gateway key"
    REMOVE_KEY = "remove gateway key"
    BACK_UP = "back up"
    RESTORE = "restore"


OPERATOR, ADMIN = Role.OPERATOR, Role.ADMIN
RULES: dict[Action, PermissionRule] = {
    Action.SUBMIT: PermissionRule(OPERATOR, "job", "submit jobs"),
    Action.CANCEL: PermissionRule(OPERATOR, "job", "cancel jobs", own=True),
    Action.RESUME: PermissionRule(OPERATOR, "job", "resume jobs", own=True),
    Action.MOVE: PermissionRule(OPERATOR, "job", "move jobs to the front", own=True),
    Action.PRIORITIZE: PermissionRule(OPERATOR, "job", "change the priority of jobs", own=True),
    Action.RELEASE: PermissionRule(OPERATOR, "job", "release jobs", own=True),
    Action.DRAIN: PermissionRule(ADMIN, "machine", "drain supervisors"),
    Action.DROP_KEPT: PermissionRule(OPERATOR, "job", "delete the saved progress of jobs", own=True),
    Action.DELETE_ARTIFACT: PermissionRule(OPERATOR, "artifact", "delete artifacts", own=True),
    Action.COLLECT: PermissionRule(ADMIN, "artifact", "delete unused files"),
    Action.SAVE_PRESET: PermissionRule(OPERATOR, "preset", "save presets"),
    Action.REPLACE_PRESET: PermissionRule(OPERATOR, "preset", "replace presets", own=True),
    Action.REMOVE_PRESET: PermissionRule(OPERATOR, "preset", "remove presets", own=True),
    Action.REMEMBER_MODEL: PermissionRule(OPERATOR, "model", "import models"),
    Action.REPLACE_MODEL: PermissionRule(OPERATOR, "model", "import models again", own=True),
    Action.FORGET_MODEL: PermissionRule(OPERATOR, "model", "forget models", own=True),
    Action.UPLOAD: PermissionRule(OPERATOR, "file", "upload files"),
    Action.GET_TASK: PermissionRule(OPERATOR, "file", "get tasks"),
    Action.ADD_RESULT: PermissionRule(OPERATOR, "file", "add results of other programs"),
    Action.REMOVE_RESULT: PermissionRule(ADMIN, "file", "remove results of other programs"),
    Action.REMOVE_ENGINE: PermissionRule(ADMIN, "engine", "remove engines"),
    Action.INSTALL_FROM_INDEX: PermissionRule(ADMIN, "engine", "install engines from a package index that they name"),
    Action.REFRESH_PRICES: PermissionRule(ADMIN, "prices", "refresh prices"),
    Action.MEASURE: PermissionRule(OPERATOR, "machine", "measure this machine"),
    Action.REMOVE_DAMAGED: PermissionRule(ADMIN, "row", "remove damaged rows"),
    Action.ASK: PermissionRule(OPERATOR, "machine", "ask endpoints"),
    Action.DEPLOY: PermissionRule(OPERATOR, "endpoint", "deploy artifacts"),
    Action.UPDATE_ENDPOINT: PermissionRule(OPERATOR, "endpoint", "update endpoints", own=True),
    Action.DELETE_ENDPOINT: PermissionRule(OPERATOR, "endpoint", "delete endpoints", own=True),
    Action.ADD_ENDPOINT: PermissionRule(OPERATOR, "local endpoint", "serve models"),
    Action.START_ENDPOINT: PermissionRule(OPERATOR, "local endpoint", "start endpoints", own=True),
    Action.STOP_ENDPOINT: PermissionRule(OPERATOR, "local endpoint", "stop endpoints", own=True),
    Action.REMOVE_ENDPOINT: PermissionRule(OPERATOR, "local endpoint", "remove endpoints", own=True),
    Action.ADD_KEY: PermissionRule(ADMIN, "gateway key", "add keys of the gateway"),
    Action.REMOVE_KEY: PermissionRule(ADMIN, "gateway key", "remove keys of the gateway"),
    Action.BACK_UP: PermissionRule(ADMIN, "file", "back the studio up"),
    Action.RESTORE: PermissionRule(ADMIN, "file", "restore a studio"),
}


def refusal(actor: Actor, action: Action, owner: str | None = None) -> str | None:
    """Return why the actor may not, in one sentence; None where they may.

    `owner`: of what is changed, None if nobody.
    """
    # 1. The actor's role.
    rule = RULES[action]
    if actor.role is None:
        return f"{actor.name} has no role in this studio: ask an admin for one."
    if actor.role.rank < rule.least.rank:
        return f"The role {actor.role} may not {rule.words}: ask an admin for the role {rule.least}."
    # 2. The owner, for those who may change only their own.
    if rule.own and owner not in {None, actor.name} and actor.role is not ADMIN:
        return (
            f"This {rule.kind} is {owner or 'nobody'}'s, and an operator may {rule.words} of their own only: ask an "
            "admin."
        )
    return None
