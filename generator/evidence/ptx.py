"""CUDA source to C++ that g++ builds against `emulator/emu.h`.

Only inline PTX, `extern __shared__` and the entry points are rewritten. Each `asm` statement becomes calls named after its mnemonics, so
the helpers of the source run as they are written, operand order included. What the emulator cannot honour is refused here, by name.
"""

import re
from collections.abc import Iterable
from typing import Final


class UnsupportedError(ValueError):
    """A source uses something that the emulator does not run; the message names it and the line."""


HEADERS: Final = ("cuda.h", "cuda_runtime.h", "cuda_fp16.h", "cuda_bf16.h", "cuda_fp8.h")
"""Headers a kernel source may include."""

FORBIDDEN: Final = (
    (r"cooperative_groups|\bcg::", "cooperative groups are not emulated: use __syncthreads, __syncwarp and shuffles"),
    (r"\bwmma\b", "nvcuda::wmma is not emulated: use mma.sync"),
    (r"\bprintf\s*\(", "printf is not emulated and has no place in a candidate"),
    (r"\bINFINITY\b|\bHUGE_VALF\b", "INFINITY needs a host header: use __int_as_float(0x7f800000) or a finite bound"),
    (r"\b__activemask\s*\(", "__activemask is not emulated: name the lanes in the mask"),
    (
        r"multicast::cluster|\bgetctarank\b|\b(?:st|red)\.async\b|(?:\batom|\bred|mbarrier)[\w.:]*shared::cluster|shared::cluster\.shared"
        r"|\b__cluster(?!_dims__\b)\w+",
        "of clusters, only barrier.cluster, mapa.shared::cluster and ld / st.shared::cluster are emulated",
    ),
    (r"__cluster_dims__\s*\([^()]*\)[^;{]*__global__", "__cluster_dims__ must stand between __global__ and the kernel's name"),
    (r"\bclock(64)?\s*\(\)|%%(clock|globaltimer|smid)", "clocks and SM numbers are not emulated: a kernel must not depend on them"),
    (r"\b__nanosleep\s*\(", "spinning is not emulated: blocks run in turn, so a block cannot wait for another"),
    (r"\batomic\w+_block\b|\batomic\w+_system\b", "scoped atomics are not emulated: use the plain ones"),
)
"""Pattern in the source without comments, and what is wrong with it."""

_ASM = re.compile(r"\basm(?:\s+volatile|\s+__volatile__)?\s*\(")
_COMMENT = re.compile(r'//[^\n]*|/\*.*?\*/|("(?:[^"\\\n]|\\.)*")', re.DOTALL)
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
_INCLUDE = re.compile(r"^\s*#\s*include\s*[<\"]([^>\"]+)[>\"]", re.MULTILINE)
_INSTRUCTION = re.compile(r"(?:@(!?\w+)\s+)?([\w.:]+)\s*(.*)$", re.DOTALL)
_REGISTER = re.compile(r"\.reg\s+\.(\w+)\s+([\w\s,]+)$")
_HINT = re.compile(r"::cta\b|\.L[12]::\w+(?:::\w+)?")
_DYNAMIC = re.compile(r"extern\s+__shared__\s+(?:__align__\(\w+\)\s+|alignas\(\w+\)\s+)?([\w ]+?)\s+(?:__align__\(\w+\)\s+)?(\w+)\[\];")
_REGISTER_TYPES: Final = {
    "pred": "int",
    "f32": "float",
    "b64": "uint64_t",
    "u64": "uint64_t",
    "b16": "uint16_t",
    "u16": "uint16_t",
    "b8": "uint8_t",
    "s32": "int",
}


def translate(source: str) -> str:
    """C++ with one exported `emu_run_<kernel>` per `__global__` function. Raises UnsupportedError."""
    code = _without_comments(source)
    refuse(code)
    out, at = [], 0
    for match in _ASM.finditer(code):
        if match.start() < at:
            continue
        end = _close(code, match.end() - 1)
        out += [code[at : match.start()], _asm(code[match.end() : end], _line(code, match.start()))]
        at = code.index(";", end) + 1
    text = "".join(("namespace {\n", *out, code[at:], "\n}  // namespace\n"))
    text = _DYNAMIC.sub(r"\1* const \2 = reinterpret_cast<\1*>(emu::dyn_smem);", text)
    return text + "".join(_export(name, cluster) for name, cluster in _entries(code).items())


def kernels(source: str) -> tuple[str, ...]:
    """Names of the `__global__` functions of a source, in order."""
    return tuple(_entries(_without_comments(source)))


def _entries(code: str) -> dict[str, str]:
    """The `__global__` functions, in order, and what stands between the parentheses of their `__cluster_dims__`."""
    entries: dict[str, str] = {}
    for match in re.finditer(r"\b__global__\b", code):
        head = re.compile(r"\s*(?:void\b|static\b|(?P<attribute>__\w+__)|(?P<name>[A-Za-z_]\w*))\s*")
        at, cluster = match.end(), ""
        while found := head.match(code, at):
            at = found.end()
            if found["name"]:
                entries[found["name"]] = cluster
                break
            if found["attribute"] and code[at : at + 1] == "(":
                end = _close(code, at)
                if found["attribute"] == "__cluster_dims__":
                    cluster = code[at + 1 : end]
                at = end + 1
    return entries


def refuse(code: str) -> None:
    """Raise UnsupportedError for the first construct of a source that the emulator does not run."""
    for match in _INCLUDE.finditer(code):
        if match[1] not in HEADERS:
            raise UnsupportedError(f"line {_line(code, match.start(1))}: #include <{match[1]}>: a kernel may include {', '.join(HEADERS)}")
    for pattern, why in FORBIDDEN:
        if match_ := re.search(pattern, code):
            raise UnsupportedError(f"line {_line(code, match_.start())}: {match_[0]!r}: {why}")


def _export(name: str, cluster: str) -> str:
    head = f'extern "C" __attribute__((visibility("default"))) int emu_run_{name}(emu::Launch* cfg, unsigned n, void** args)'
    return f"\n{head} {{ return emu::run(cfg, dim3{{{cluster}}}, n, {name}, args); }}\n"


def _without_comments(source: str) -> str:
    """The source with comments blanked, lines kept."""
    return _COMMENT.sub(lambda m: m[1] or "\n" * m[0].count("\n") or " ", source)


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


def _asm(body: str, line: int) -> str:
    """The calls of one asm statement; `body` is what stands between its parentheses."""
    parts = _split(body, ":")
    if re.search(r"[A-Za-z_]\w*", _STRING.sub("", parts[0])):
        raise UnsupportedError(f"line {line}: asm text must be string literals only, without macros")
    text = "".join(_STRING.findall(parts[0])).replace("\\n", " ").replace("\\t", " ").strip()
    operands = [item for part in parts[1:3] for item in _operands(part)]
    if text.startswith("{") and text.endswith("}"):
        text = text[1:-1]
    calls = (_statement(s.strip(), operands, line) for s in text.split(";") if s.strip())
    return "{ " + " ".join(calls) + " }" + "\n" * body.count("\n")


def _operands(part: str) -> Iterable[str]:
    for item in _split(part, ","):
        if match := re.match(r'\s*"[^"]*"\s*\(', item):
            yield item[match.end() : item.rindex(")")].strip()


def _statement(text: str, operands: list[str], line: int) -> str:
    if declared := _REGISTER.match(text):
        kind = _REGISTER_TYPES.get(declared[1], "unsigned")
        return " ".join(f"{kind} {name.strip()} = 0;" for name in declared[2].split(","))
    match = _INSTRUCTION.match(text)
    if match is None or re.match(r"\w+\s*:(?!:)", text) or match[2].split(".")[0] in ("bra", "call", "ret"):
        raise UnsupportedError(f"line {line}: {text!r}: branches and labels in PTX are not emulated: loop in C++ around the statement")
    guard, name, rest = match.groups()
    name = re.sub(r"\W+", "_", _HINT.sub("", name))
    arguments = [_operand(a.strip(), operands) for a in re.sub(r"[\[\]{}]", " ", rest).split(",") if a.strip()]
    call = f"ptx_{name}({', '.join(arguments)});"
    return f"if ({guard}) {call}" if guard else call


def _operand(text: str, operands: list[str]) -> str:
    if text == "_":
        return "emu_sink"
    if literal := re.fullmatch(r"0[fF]([0-9a-fA-F]{8})", text):
        return f"emu::bits<float>(0x{literal[1]}u)"
    text = re.sub(r"%%(\w+)", r"emu_\1", text)
    return re.sub(r"%(\d+)", lambda m: f"({operands[int(m[1])]})", text)


def _close(text: str, at: int) -> int:
    """Index of the bracket that closes the one at `text[at]`, string literals skipped."""
    depth, i = 0, at
    while True:
        c = text[i]
        if c == '"':
            i = _end_of_string(text, i)
        elif c in "([{":
            depth += 1
        elif c in ")]}":
            depth -= 1
            if depth == 0:
                return i
        i += 1


def _end_of_string(text: str, at: int) -> int:
    end = text.index('"', at + 1)
    while text[end - 1] == "\\":
        end = text.index('"', end + 1)
    return end


def _split(text: str, separator: str) -> list[str]:
    """The parts between separators outside brackets and strings; a doubled separator gives an empty part."""
    out, depth, start, i = [], 0, 0, 0
    while i < len(text):
        c = text[i]
        if c == '"':
            i = _end_of_string(text, i)
        elif c in "([{":
            depth += 1
        elif c in ")]}":
            depth -= 1
        elif c == separator and depth == 0:
            out.append(text[start:i])
            start = i + 1
        i += 1
    return [*out, text[start:]]
