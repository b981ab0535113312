"""Typer's complaints about a command line, retold as the one line that all errors of this project have.

Typer prints a usage panel of its own, worded differently from version to version; a person or script that reads stderr wants one line:
what, value, allowed, fix.
"""

import enum
from collections.abc import Sequence
from typing import Any, Final

import typer

# Typer brings its own copy of click or shares an installed one; either way this is the base of its usage errors.
UsageError: Final[type[Exception]] = typer.BadParameter.__mro__[1]

_ALLOWED: Final = {
    **dict.fromkeys(("episodes", "validation", "seed", "workers", "shard_size"), "a whole number"),
    "stall": "a number of seconds",
    "what": "ops, gpus, variants, tasks",
    "action": "build, verify",
    "episode_id": "an id of the column episode_id",
    "folder": "the folder of a build",
    "repo_id": "NAME/kernelswarm",
    "revision": "a name of a branch",
}


class Registry(enum.StrEnum):
    """What `list` can list."""

    ops = "ops"
    gpus = "gpus"
    variants = "variants"
    tasks = "tasks"


class Action(enum.StrEnum):
    """What `evidence` can do."""

    build = "build"
    verify = "verify"


def line(error: Any, arguments: Sequence[str]) -> str:
    """The one line for a usage error of the command line `arguments`, without the leading `error: `."""
    context = getattr(error, "ctx", None)
    param = getattr(error, "param", None)
    option = getattr(error, "option_name", None) or (param.opts[0] if param is not None else None)
    match type(error).__name__:
        case "NoSuchOption":
            what, value = "no such option", option
        case "MissingParameter":
            what, value = f"{_label(param)} is missing", None
        case "BadParameter" if option is not None:
            what, value = f"{_label(param)} is not valid", _value(option, arguments)
        case _:
            message = " ".join(error.format_message().split()).rstrip(".")
            what, value = message[:1].lower() + message[1:], " ".join(arguments) or None
    allowed = _ALLOWED[param.name] if param is not None and param.name in _ALLOWED else _names(context)
    path = context.command_path if context is not None else f"python -m generator {arguments[0] if arguments else ''}".strip()
    return f"{what}, got {'nothing' if value is None else repr(value)}, allowed: {allowed}, see `{path} --help`"


def _label(param: Any) -> str:
    """`--option`, or the name of an argument in capitals."""
    return str(param.opts[0] if param.opts[0].startswith("-") else getattr(param, "metavar", None) or param.name.upper())


def _value(option: str, arguments: Sequence[str]) -> str | None:
    """What the command line gives for an option; the last word for an argument."""
    for word, following in zip(arguments, [*arguments[1:], None], strict=True):
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
        if word == option:
            return following
    return arguments[-1] if arguments else None


def _names(context: Any) -> str:
    """The commands or the options there are."""
    commands = getattr(getattr(context, "command", None), "commands", None)
    if commands:
        return ", ".join(commands)
    options = [name for known in getattr(getattr(context, "command", None), "params", ()) for name in known.opts if name.startswith("--")]
    return ", ".join(options) or "what --help lists"
