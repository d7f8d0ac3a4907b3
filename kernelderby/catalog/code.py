"""The tokens of a source that run. Comments and layout do not count, so a reworded comment keeps recorded rows.

Python: the syntax tree without docstrings; they stay where the file names `__doc__`. C++ and CUDA: the tokens, every
preprocessor directive on a line of its own, strings word for word. White space counts, as one blank, where a solution
turns tokens into strings (`#argument` in a macro). Other files, files that do not parse, Python in another encoding
than UTF-8, and C++ that a compiler may read in another way count with their whole text. Two texts of one form run
alike, except for code that reads its own text or line numbers (`__LINE__`, tracebacks).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache

_CPP = (".cu", ".cuh", ".cpp", ".cc", ".cxx", ".c", ".h", ".hpp", ".hh", ".inl")
_SPLICE = r"\\\r?\n"
_TOKEN = re.compile(
    rf"""
    (?P<literal> (?:u8|[uUL])?R"(?P<fence>[^()\\\s]{{0,16}})\(.*?\)(?P=fence)"
               | (?:u8|[uUL])?(?:"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)+') )
  | (?P<blank> //(?:{_SPLICE}|[^\n])* | /\*.*?\*/ | [ \t\r\f\v]+ )
  | (?P<splice> {_SPLICE} )
  | (?P<newline> \n )
  | (?P<directive> \#[ \t]*(?:include(?:_next)?[ \t]*(?:<[^>\n]*>|"[^"\n]*") | define[ \t]+[^\W\d][\w$]*\(?) )
  | (?P<number> \.?\d(?:'?[\w.]|(?<=[eEpP])[+-])* )
  | (?P<name> [^\W\d][\w$]* )
  | (?P<sign> <<<|>>>|<=>|->\*|\.\.\.|<<=|>>=|::|->|\.\*|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|\#\#|. )
    """,
    re.VERBOSE | re.DOTALL,
)
_ENCODING = re.compile(r"[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)")  # PEP 263, in the first two lines
_UTF_8, _LINE_END = re.compile(r"utf[-_]?8", re.IGNORECASE), re.compile(r"\r\n|\r|\n")
_REST_OF_STRING = {quote: re.compile(rf"(?:[^{quote}\\\n]|\\.)*", re.DOTALL) for quote in "\"'"}
_RAW = re.compile(r'"[^()\\\s]{0,16}\(')
_MOST_IN_VAIN = 2_000_000  # letters: a tenth of a second; the text of a solution has some thousands
_MOST_PARSED = 4 << 20  # letters of a solution: 2 GB and ten seconds; those of this set have 0.2 million
# Compilers read these in another way than _TOKEN: a carriage return that ends a line, blanks in a splice, a splice in
# the end of a comment, digraphs and trigraphs.
_READ_OTHERWISE = re.compile(rf"\r(?!\n)|\\[ \t\f\v\0]+\r?\n|\*(?:{_SPLICE})+/|%:|\?\?[=/]")
# Outside of a plain directive: a header's name may stand behind them, in which `//` is no comment.
_OF_DIRECTIVES = {"define", "embed", "include", "include_next"}
_OF_DIRECTIVES |= {"__has_embed", "__has_include", "__has_include_next"}
_STRINGISES = re.compile(r"[^\n] # ")  # in a form: `#` that begins no line


def running_parts(sources: Mapping[str, str]) -> list[tuple[str, str]]:
    """Path -> the form of the text that runs, sorted by path. Sources of megabytes count whole: a syntax tree takes 500
    times the memory of its text."""
    if sum(map(len, sources.values())) > _MOST_PARSED:
        return sorted(sources.items())
    forms = {path: _running(path, text) for path, text in sources.items()}
    of_cpp = [path for path in sources if path.endswith(_CPP)]
    if any(forms[path] is sources[path] or _STRINGISES.search(forms[path]) for path in of_cpp):
        forms |= {path: cpp_form(sources[path], True) for path in of_cpp}
    return sorted(forms.items())


def _running(path: str, text: str) -> str:
    if path.endswith(".py"):
        return python_form(text)
    return cpp_form(text) if path.endswith(_CPP) else text


@lru_cache(1024)
def python_form(text: str) -> str:
    """A form that is the same for two texts with one syntax tree, in every version of Python. A file that names another
    encoding than UTF-8 counts whole: in utf-7 a comment can hold the end of its line, and code behind it."""
    text = text.removeprefix("\ufeff")  # which Python does not read either
    named = (_ENCODING.match(line) for line in _LINE_END.split(text, 2)[:2])
    if any(found and not _UTF_8.fullmatch(found[1]) for found in named):
        return text
    try:
        return _form(ast.parse(text), "__doc__" in text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return text


_WITH_DOCSTRING = frozenset({ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef})


def _form(node: ast.AST, docstrings: bool) -> str:
    """Unlike ast.dump() it leaves out empty fields, so it is the same in every version of Python."""
    kind = type(node)
    if kind is ast.Constant:
        return f"{type(node.value).__name__} {node.value!a}"  # type: ignore[attr-defined]
    parts = []
    for name in node._fields:
        value = getattr(node, name, None)
        if value is None or value == []:
            continue
        if name == "body" and not docstrings and kind in _WITH_DOCSTRING:
            value = value[ast.get_docstring(node, clean=False) is not None :]  # type: ignore[arg-type]
            if not value:
                continue
        if type(value) is list:
            shown = f"[{', '.join([_form_of(each, docstrings) for each in value])}]"
        else:
            shown = _form_of(value, docstrings)
        parts.append(f"{name}={shown}")
    return f"{kind.__name__}({', '.join(parts)})"


def _form_of(value: object, docstrings: bool) -> str:
    if isinstance(value, ast.AST):
        return _form(value, docstrings) if value._fields else f"{type(value).__name__}()"
    return ascii(value)


@lru_cache(1024)
def cpp_form(text: str, spaced: bool = False) -> str:
    """The tokens with a blank between two. spaced: two blanks if the text has white space or a comment there. The text
    itself if a compiler may read it in another way."""
    try:
        return text if _READ_OTHERWISE.search(text) else " ".join(_tokens(text, spaced))
    except _Unsure:
        return text


class _Unsure(Exception):
    """A compiler may read the text in another way. So may it quotation marks that nothing ends; and many of them, or of
    comments, would take hours: the rest is looked through for each."""


def _looked_through(text: str, match: re.Match[str]) -> int:
    """Letters behind a token that were searched for the end of a string or comment, in vain."""
    token, end = match[0], match.end()
    if token in _REST_OF_STRING:
        found = _REST_OF_STRING[token].match(text, end)
        return found.end() - end if found else 0
    is_open = (token == "/" and text.startswith("*", end)) or (token[-1] == "R" and _RAW.match(text, end))
    return len(text) - end if is_open else 0


def _tokens(text: str, spaced: bool) -> Iterator[str]:
    is_start, in_directive, was_blank = True, False, False
    in_vain = 0
    for match in _TOKEN.finditer(text):
        kind, token = match.lastgroup, match[0]
        if kind in ("sign", "name") and (in_vain := in_vain + _looked_through(text, match)) > _MOST_IN_VAIN:
            raise _Unsure
        if kind == "newline":
            if in_directive:
                yield "\n"
            is_start, in_directive, was_blank = True, False, True
        elif kind == "blank":
            was_blank = True
        elif kind == "splice":
            if not (text[match.start() - 1 : match.start()].isspace() or text[match.end() : match.end() + 1].isspace()):
                raise _Unsure  # it may stand inside of a name
            was_blank = True
        elif _is_unsure(kind, token, in_directive):
            raise _Unsure
        else:
            if is_start and token[0] == "#":
                in_directive = True
                yield "\n"
            elif was_blank and spaced:
                yield ""
            is_start = was_blank = False
            yield re.sub(r"^#\s*define\s+", "#define ", token) if kind == "directive" else token


def _is_unsure(kind: str | None, token: str, in_directive: bool) -> bool:
    """A quotation mark that nothing ends, a directive in another form, or a number with an odd quotation mark, which
    begins a character before C++14."""
    if kind == "number":
        return token.count("'") % 2 == 1
    if kind == "sign":
        return token in "\"'"
    return token == "import" or (in_directive and token in _OF_DIRECTIVES)
