"""Calls to the Hub that may fail: tried again while it is worth it, and told in one line where it is not.

A failure names what to do about it: log in, use a token that writes, free some storage, wait, run the same command again. The token is
struck out of whatever the Hub says.
"""

import re
import time
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from generator.errors import HubError

Value = TypeVar("Value")

WAITS: Final = (1.0, 4.0, 16.0)
"""Seconds before each further try; huggingface_hub backs off by itself within most of them."""
LONGEST_WAIT: Final = 120.0
"""Seconds that a `Retry-After` of the Hub is obeyed."""
PASSING: Final = frozenset({408, 429, 500, 502, 503, 504})

_QUOTA: Final = re.compile(r"quota|storage|payment|space left|limit (reached|exceeded)", re.IGNORECASE)
_TOKEN: Final = re.compile(r"hf_[A-Za-z0-9_]{8,}")
_TRANSPORT: Final = frozenset({"TransportError", "RequestException", "ConnectionError", "TimeoutError", "OfflineModeIsEnabled"})
"""Base classes of whatever the HTTP libraries below huggingface_hub raise when no answer comes; its versions use three of them."""


def retrying(call: Callable[[], Value]) -> Value:
    """What `call` returns, called again after failures that pass."""
    for wait in WAITS:
        try:
            return call()
        except Exception as error:
            if not passing(error):
                raise
            time.sleep(max(wait, retry_after(error)))
    return call()


def passing(error: BaseException) -> bool:
    """Whether the same call may succeed later: too many requests, a fault of the Hub, no answer."""
    return status(error) in PASSING or (status(error) is None and unreachable(error))


def status(error: BaseException) -> int | None:
    """HTTP status of the answer that an error is about, its causes included."""
    codes = (getattr(getattr(link, "response", None), "status_code", None) for link in _chain(error))
    return next((code for code in codes if isinstance(code, int)), None)


def unreachable(error: BaseException) -> bool:
    """Whether no answer came at all."""
    return any(kind.__name__ in _TRANSPORT for link in _chain(error) for kind in type(link).__mro__)


def retry_after(error: BaseException) -> float:
    """Seconds the Hub asks to wait; 0 if it does not say."""
    for link in _chain(error):
        text = str(getattr(getattr(link, "response", None), "headers", {}).get("Retry-After", ""))
        if text.isdigit():
            return min(float(text), LONGEST_WAIT)
    return 0.0


def told(error: Exception, doing: str, repo: str, token: str | None) -> HubError:
    """The one line for a failure while `doing` something with `repo`. Raises the error again if it is a fault of this program."""
    code, text = status(error), _said(error, token)
    again = "run the same command again: it goes on where it stopped"
    if code is None and unreachable(error):
        return HubError(f"cannot reach the Hub while {doing}", text, "a working network", f"check network and HF_ENDPOINT, then {again}")
    if code in (402, 403, 413, 507, None) and _QUOTA.search(text):
        return HubError(
            f"no storage left on the Hub while {doing}", text, "a repository within its quota", f"free some or ask for more, then {again}"
        )
    if code == 401:
        return HubError(
            f"the Hub does not accept the token while {doing}", text, "a token that is valid", "run `hf auth login` or set HF_TOKEN"
        )
    if code == 403:
        return HubError(f"no right to write while {doing}", text, f"a token that may write to {repo}", "make one at hf.co/settings/tokens")
    if code == 404:
        return HubError(f"not found while {doing}", text, "a repository and revision that exist", "check --repo-id and --revision")
    if code in (409, 412):
        return HubError(
            f"somebody else changed {repo} at the same time",
            text,
            "no other commit meanwhile",
            "look at it, then run the same command again",
        )
    if code in PASSING:
        return HubError(f"the Hub keeps failing while {doing}", text, "an answer within a few tries", f"wait, then {again}")
    if code is None and not isinstance(error, OSError | RuntimeError | ValueError):
        raise error
    return HubError(f"the Hub refuses while {doing}", text, "a request it takes", "see hf.co/status, then run the same command again")


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error and what it came from."""
    link: BaseException | None = error
    while link is not None:
        yield link
        link = link.__cause__ or link.__context__


def _said(error: Exception, token: str | None) -> str:
    """What the Hub said, on one line, without a token."""
    link: BaseException | None = next((link for link in _chain(error) if getattr(link, "response", None) is not None), None)
    link = link or error.__cause__ or error
    text = " ".join(str(getattr(link, "server_message", None) or link).split()) or type(link).__name__
    code = status(error)
    text = f"{code} {text}" if code is not None and str(code) not in text else text
    return _TOKEN.sub("***", text.replace(token, "***") if token else text)[:300]
