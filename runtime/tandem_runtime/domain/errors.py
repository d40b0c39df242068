"""Knows every way in which serving a request can fail, and whose fault each is.

Refuses to know HTTP and gRPC codes: those are chosen at the edges, in one table each.

    TandemError
    |-- BadRequest            the caller's fault; says which parameter, which value, what to do
    |   |-- NothingAdmitted   the request's own rules leave no token at some position
    |   |-- NotLoaded         it names an adapter that is not loaded; says which are
    |   `-- NotSupported      it asks for what the model that is served cannot do, at any value
    |-- Overloaded            ours, and it passes; the caller should come back after `retry_after_seconds`
    |   `-- WaitedInVain      a target had room and was too busy for too long; no other is asked
    |-- Cancelled             the caller went away
    |-- DraftLost             the draft is of no use now: gone, a fault of its own, nonsense; text goes on with K = 0
    |   |-- DraftLate         it gave no answer in time
    |   `-- DraftForgot       the draft lives but does not hold this session as the caller does; open it again
    |-- TargetLost            the target cannot be reached; the driver re-opens elsewhere or fails the request
    |   |-- TargetLate        it gave no answer in time
    |   `-- SessionLost       the target lives but does not know this session or incarnation; re-open
    |-- StaleOffset           a round refers to a prefix that the engine has moved past; never retried blindly
    |-- NotANumber            the model produced logits without a law; the request fails, nothing is guessed
    |-- OutOfOrder            our own fault: an event that the session cannot be told in its state
    |-- ModelRefused          a model folder, an adapter or a pair that cannot be served; says which file or field
    |-- PolicyRefused         a policy document that cannot be followed; the last good one stays in force
    `-- SettingRefused        an option or a file given at the start is wrong; says which and what to do

What is not of the tree is a bug. Its message may hold what a user wrote, so logs say `origin` of it instead.
"""

import traceback
from typing import Final


class TandemError(Exception):
    """Root of the tree; never raised itself."""


class BadRequest(TandemError):
    """The request is wrong: `parameter` names the field as the caller wrote it."""

    def __init__(self, message: str, *, parameter: str | None = None) -> None:
        super().__init__(message)
        self.parameter = parameter


class NothingAdmitted(BadRequest):
    """Grammar, allowed tokens, bad words and minimum length together forbid every token that could follow."""


class NotLoaded(BadRequest):
    """An adapter is asked for that is not loaded, or is leaving; the message names those that are."""


class NotSupported(BadRequest):
    """The field asks for what this model lacks the means for, whatever its value; the message names what is missing."""


class Overloaded(TandemError):
    """There is no room now; worth another try after `retry_after_seconds`."""

    def __init__(self, message: str, *, retry_after_seconds: int = 1) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class WaitedInVain(Overloaded):
    """Who was to be patient was, at a target that has more urgent things to do. The others are no less busy, and know
    nothing of what was read."""


class Cancelled(TandemError):
    """The caller no longer wants the answer."""


class DraftLost(TandemError):
    """The draft is gone, failed, or said what is no answer; never fatal."""


class DraftLate(DraftLost):
    """The draft gave no answer in time."""


class DraftForgot(DraftLost):
    """The draft answers but does not hold this session, or not up to where the caller says."""


class TargetLost(TandemError):
    """The target is gone; what was emitted so far stays true."""


class TargetLate(TargetLost):
    """The target gave no answer in time."""


class SessionLost(TargetLost):
    """The target answers but holds no such session in this incarnation."""


class StaleOffset(TandemError):
    """A verify names an offset that is not the number of tokens committed so far."""


class NotANumber(TandemError):
    """A row of logits holds NaN or +inf, or -inf everywhere: no distribution exists, so no token is drawn."""


class OutOfOrder(TandemError):
    """A driver told a session of an event that its state does not allow: a bug, never a request's fault."""


class ModelRefused(TandemError):
    """A model, an adapter or a pair cannot be served; the message names the file or field and what to do."""


class PolicyRefused(TandemError):
    """A policy document is wrong: the message names the field's path, its value and what would be right."""


class SettingRefused(TandemError):
    """What a command was started with is wrong: the message names the option, the value and what would be right."""


NO_LAW: Final = (NotANumber, NothingAdmitted)
"""What is raised of a place at which no next token can be drawn, by the model's fault or by the request's own rules."""


def origin(error: BaseException) -> str:
    """An error's kind and where it was raised, innermost first, without its message: `KeyError at take:12 < read:7`."""
    frames = reversed(traceback.extract_tb(error.__traceback__)[-5:])
    return f"{type(error).__name__} at {' < '.join(f'{frame.name}:{frame.lineno}' for frame in frames)}"
