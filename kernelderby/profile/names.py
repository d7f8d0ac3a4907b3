"""Kernel names: one form for nsys, CUPTI and Kineto, their parts, and a short form for tables.

The profilers write one kernel differently: (int)4 or 4, <unnamed> or (anonymous namespace), [lambda() (instance 1)] or
{lambda()#1}. normal_form() makes them one text that rules can match; a mangled name is read as far as rules need it.
"""

from __future__ import annotations

import re
from functools import lru_cache

from kernelderby.errors import DerbyError
from kernelderby.store.counts import shortened
from kernelderby.store.demangle import outline

SHORT = 64  # characters of a short name: half of a page, the other columns need the rest

_CAST = re.compile(r"\((?:un)?(?:signed )?(?:bool|char|short|int|long|long long)\)(?=-?\d)")
_SUFFIX = re.compile(r"(?<![\w.])(\d+)[uUlL]{1,3}\b")
_ANONYMOUS = re.compile(r"(?:<unnamed>|\(anonymous namespace\)|\{anonymous\}|_GLOBAL__N_\w*|_INTERNAL_\w+)::")
_LAMBDA = re.compile(r"\{lambda\(([^{}]*)\)#(\d+)\}")
_RETURN = re.compile(r"^(?:std::enable_if<.*?>::type|void)\s+(?=[\w:])")
_CLONE = re.compile(r"(?<!\s)\s*\[clone [^\]]*\]|\.kd$")
_OPENING = re.compile(r"(?<!\A)<|\(")
_BRACKET = re.compile(r"([<>()\[\]])")
_SEPARATOR = re.compile(r"([<>()\[\],])")
_OPENED_BY = {">": "<", ")": "(", "]": "["}
_STEPS = {**dict.fromkeys("<([", 1), **dict.fromkeys(">)]", -1), ",": 0}


LONGEST = 20_000  # letters of a name that are read: CUTLASS's longest have 10,000, and each costs time
_KEPT = 64  # names: each is asked for its short form, then for its library


@lru_cache(_KEPT)
def normal_form(name: str) -> str:
    """The name without return type, casts, anonymous namespaces and clone marks; lambdas as nsys writes them."""
    text = name[:LONGEST].strip()
    if text.startswith("_Z"):
        text = outline(text)
    if "[clone" in text or text.endswith(".kd"):
        text = _CLONE.sub("", text)
    text = _ANONYMOUS.sub("", _CAST.sub("", text))
    while (lambdas := _LAMBDA.sub(r"[lambda(\1) (instance \2)]", text)) != text:
        text = lambdas
    text = _SUFFIX.sub(r"\1", text)
    while "> >" in text:
        text = text.replace("> >", ">>")
    return _RETURN.sub("", text)


@lru_cache(_KEPT)
def split(text: str) -> tuple[str, str, str]:
    """(qualified name, template arguments, the rest) of a normal form: "a::f<int>(T1)" -> ("a::f", "int", "(T1)").

    If a table has cut the name off, the remaining text counts as arguments.
    """
    qualified = _qualified(text)
    place = len(qualified)
    if not text.startswith("<", place):
        return qualified, "", text[place:]
    end = _closing(text, place)
    return qualified, text[place + 1 : end], text[end + 1 :]


def _qualified(text: str) -> str:
    found = _OPENING.search(text)
    return text[: found.start()] if found else text


def arguments(text: str) -> list[str]:
    """Template arguments at the top level: "int, a<b, c>" -> ["int", "a<b, c>"]."""
    pieces = _SEPARATOR.split(text)  # every second one is a separator
    parts, depth, start = [], 0, 0
    for place in range(1, len(pieces), 2):
        if step := _STEPS[pieces[place]]:
            depth += step
        elif depth == 0:
            parts.append("".join(pieces[start:place]).strip())
            start = place + 1
    last = "".join(pieces[start:]).strip()
    return [*parts, last] if last else parts


def _closing(text: str, start: int) -> int:
    """Index of the > that closes the < at start; the text's end if it was cut off. Signs inside brackets and
    parentheses do not count."""
    pieces = _BRACKET.split(text[start:])  # every second one is a bracket
    stack = list[str]()
    for place in range(1, len(pieces), 2):
        bracket = pieces[place]
        if bracket in _OPENED_BY:
            if stack and stack[-1] == _OPENED_BY[bracket]:
                stack.pop()
                if not stack:
                    return start + sum(map(len, pieces[:place]))
        else:
            stack.append(bracket)
    return len(text)


_TYPES = {
    **dict.fromkeys(("__nv_bfloat16", "BFloat16", "bfloat16_t"), "bf16"),
    **dict.fromkeys(("__half", "Half", "half_t"), "fp16"),
    **dict.fromkeys(("__nv_fp8_e4m3", "float_e4m3_t", "Float8_e4m3fn"), "e4m3"),
    **dict.fromkeys(("__nv_fp8_e5m2", "float_e5m2_t"), "e5m2"),
    **dict.fromkeys(("float_e2m1_t", "__nv_fp4_e2m1"), "e2m1"),
}
# Wrappers that only call their first template argument.
_WRAPPERS = {
    "Kernel", "Kernel2", "device_kernel", "enable_sm80_to_sm89", "enable_sm90", "enable_sm90_or_later",
    "enable_sm100_or_later", "gpu_kernel_impl", "gpu_kernel_impl_nocast", "gpu_index_kernel",
}  # fmt: skip
# Arguments about a kernel's memory access, not about its work.
_MECHANICS = re.compile(
    r"^(?:const )?(?:std::array|array|Array|TrivialOffsetCalculator|OffsetCalculator|LoadWithCast|"
    r"StoreWithCast|LoadWithoutCast|StoreWithoutCast|integral_constant|C|tuple|Layout|identity|"
    r"cublasGemvParamsEx)$"
)
_LITERAL = re.compile(r"^(?:\([^()]*\))?-?\d+$|^(?:true|false)$|^T\d+$|^(?:un)?(?:signed )?(?:int|long|char)$")
_LONE_TYPE = re.compile(r"^(?:int|long|unsigned char|signed char|unsigned int|unsigned long|bool|char)$")
_CALL = re.compile(r"\boperator ?\(\) ?\(\)[^:]*")


# The text that torch.autograd.profiler.emit_nvtx appends to every operator's name; it differs for each instance.
_NUMBERS = re.compile(r"(?:, (?:seq|op_id|sizes) = [^,]*)+$")


def unnumbered(range_name: str) -> str:
    """ "aten::addmm, seq = 45440, op_id = 990760" -> "aten::addmm": the name under which tables group ranges."""
    return _NUMBERS.sub("", range_name)


def fits(pattern: re.Pattern[str], range_name: str) -> bool:
    """Whether the expression matches a range, by its own name or by the name in tables."""
    return bool(pattern.search(range_name) or (", " in range_name and pattern.search(unnumbered(range_name))))


def expression(option: str, text: str) -> re.Pattern[str]:
    """The compiled regular expression. DerbyError, which names the option, if it is invalid."""
    try:
        return re.compile(text)
    except re.error as error:
        raise DerbyError(f"{option}: {text!r} is no regular expression ({error}); mend it") from None


def short_name(name: str) -> str:
    """The name for a table: base name, and of the template arguments only functors, element types and policies.

    Different kernels may get the same short name; the caller must tell them apart.
    """
    text = _short(normal_form(name), depth=2, top=True) or name  # "(unnamed kernel)" is no list of parameters
    return shortened(text, SHORT)


def _short(text: str, depth: int, top: bool = False) -> str:
    if "[lambda(" in text and not top:
        inner = _of_lambda(text, depth)
        if inner:
            return inner
    text = text.removeprefix("void ").removeprefix("&").strip()
    base = _base(_qualified(text), top)
    is_wrapper = base.rpartition("::")[2] in _WRAPPERS
    if depth == 0 and not is_wrapper:
        return base
    found = arguments(split(text)[1])
    if is_wrapper and found:
        return _short(found[0], depth, top)
    if not found or depth == 0:
        return base
    only = len(found) == 1
    shown = [
        _short(argument, depth - 1)
        for argument in dict.fromkeys(found)
        if _worth(argument) or (only and not top and _LONE_TYPE.match(argument))
    ]
    return f"{base}<{', '.join(dict.fromkeys(shown))}>" if shown else base


def _base(qualified: str, top: bool) -> str:
    """The last part of the name. If it says little (dispatch, kernel, Marlin), with the part before."""
    parts = [part for part in qualified.split("::") if part and not part.startswith("CUB_")]
    if not parts:
        return qualified
    if not top and parts[-1] in _TYPES:
        return _TYPES[parts[-1]]
    says_little = top and len(parts) > 1 and len(parts[-1]) <= 10
    return "::".join(parts[-2:]) if says_little else parts[-1]


def _worth(argument: str) -> bool:
    if _LITERAL.match(argument) or argument.startswith("(") or argument.endswith("*"):
        return False
    return not _MECHANICS.match(_base(_qualified(argument), top=False))


def _of_lambda(text: str, depth: int) -> str:
    """f(args)::[lambda() (instance 3)]::...::[lambda(float) (instance 1)] -> f(float); of a wrapper, its functor."""
    qualified, template, rest = split(text.removeprefix("void ").strip())
    base = _base(qualified, top=False)
    found = arguments(template)
    if base in _WRAPPERS and found:
        return _short(found[0], depth)
    types = [part for part in re.findall(r"\[lambda\(([^()]*)\)", _CALL.sub("", rest)) if part]
    own = f"<{_short(found[0], 0)}>" if found and _worth(found[0]) else ""
    first = types[-1].split(",")[0].split("::")[-1].strip() if types else ""
    first = _TYPES.get(first, first)
    return f"{base}{own}({first})" if first and first != "char *" and not own else f"{base}{own}"
