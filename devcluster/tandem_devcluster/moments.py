"""The clock of the dev cluster: now, in the two forms that the API wants."""

import datetime as dt


def now_seconds() -> str:
    """`metav1.Time`: RFC 3339 in whole seconds."""
    return dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def now_micros() -> str:
    """`metav1.MicroTime`, as leases and events carry it."""
    return dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
