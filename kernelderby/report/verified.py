"""Problems of sealed sessions in words."""

from __future__ import annotations

from kernelderby.rows.verified import SealDefect, Verified
from kernelderby.store.counts import counted

_DEFECTS = {
    SealDefect.UNREADABLE: "{message}",
    SealDefect.NO_COMMITMENT: "does not begin with a commitment",
    SealDefect.NO_END: "has no end and no secret, so nobody can draw its inputs again",
    SealDefect.OTHER_SECRET: "the secret is not the one that was committed to",
    SealDefect.ROW_COUNT: "holds {rows}, and says {message} at its end",
    SealDefect.BROKEN_CHAIN: "line {count} does not follow: changed, dropped or added later",
    SealDefect.ELSEWHERE: "does not lie in traces/<gpu>/sealed/, so its rows are not checked",
    SealDefect.MISSING_ROWS: "{rows} sealed and not in the files as they were written",
    SealDefect.UNSEALED_ROWS: "{rows} of the session in the files and not sealed",
    SealDefect.REPEATED_ROWS: "{rows} sealed twice",
    SealDefect.ROWS_TWICE: "{rows} of the session twice in the files",
    SealDefect.OLDER_BEHIND: "older rows stand behind {rows} of the session and count instead",
    SealDefect.OTHER_CODE: "{rows} of code that the session did not begin with",
    SealDefect.OTHER_INPUTS: "{rows} with inputs that the secret does not draw",
    SealDefect.SIGNATURE: "signature: {message}",
}


def seal_problems(found: Verified) -> list[str]:
    return [
        _DEFECTS[each.defect].format(count=each.count, rows=counted(each.count, "row"), message=each.message)
        for each in found.problems
    ]
