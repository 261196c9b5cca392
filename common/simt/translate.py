# SPDX-License-Identifier: MIT
"""CUDA C++ to C++, for a CPU: the three things that C++ has no word for.

    kernel<<<grid, block, smem>>>(args)     simt::launch(...)
    __shared__ float tile[32];              a place in the block's own memory
    asm("ptx" : outputs : inputs)           a call of simt_ptx::..., see TABLE

What comes in has been through clang -E; all else is C++ already, with the headers in include/.
Lines stay lines, so clang's messages and every finding name the lines that the user wrote.

Never a guess: an instruction, modifier or operand that TABLE does not list is an error with its
line. In TABLE <x> is an operand: %3, or a number that stands in the text itself.

Interface: translate(text): C++. Unknown: a sentence with file and line.
"""
import re


class Unknown(Exception):
    """A sentence."""


# --- the instructions -----------------------------------------------------------------------------

SHARED = r"shared(?:::cta)?"
# .cg copies 16 bytes only
COPY = (r"cp\.async\.(?:cg(?=[^,]*,[^,]*,16)|ca)\." + SHARED +
        r"\.global(?:\.L2::(?:64|128|256)B)? \[<to>\],\[<from>\]")
POLL = (r"\{\.reg \.pred (\w+);mbarrier\.(?:try|test)_wait\.parity\.shared(?:::cta)?\.b64 "
        r"\1,\[<bar>\],<parity>;selp\.u32 <over>,1,0,\1;\}")
SCALED = (r"\{\.reg \.pred (\w+);setp\.ne\.b32 \1,<add>,0;wgmma\.mma_async\.sync\.aligned\."
          r"m64n(?P<n>\d+)k16\.f32\.(?P<t>bf16|f16)\.(?P=t) \{(?P<c>[%\d,]+)\},<a>,<b>,\1,1,1,"
          r"(?P<ta>[01]),(?P<tb>[01]);\}")
FROM_REGISTERS = (r"wgmma\.mma_async\.sync\.aligned\.m64n(?P<n>\d+)k16\.f32\.(?P<t>bf16|f16)\."
                  r"(?P=t) \{(?P<c>[%\d,]+)\},\{<a0>,<a1>,<a2>,<a3>\},<b>,(?P<add>[01]),1,1,"
                  r"(?P<tb>[01]);")
# e4m3: 32 numbers a step, and no operand that could be transposed
BYTES = (r"\{\.reg \.pred (\w+);setp\.ne\.b32 \1,<add>,0;wgmma\.mma_async\.sync\.aligned\."
         r"m64n(?P<n>\d+)k32\.f32\.e4m3\.e4m3 \{(?P<c>[%\d,]+)\},")
PACK4 = (r"\{\.reg \.b16 (\w+),(\w+);cvt\.rn\.satfinite\.e4m3x2\.f32 \1,<x1>,<x0>;"
         r"cvt\.rn\.satfinite\.e4m3x2\.f32 \2,<x3>,<x2>;mov\.b32 <r>,\{\1,\2\};\}")
TENSOR = r"cp\.async\.bulk\.tensor\.(?P<rank>[2-5])d\."
AT = r"\{(?P<at>[%\d,]+)\}"
TABLE = [
    # tensor cores, by warps
    (r"mma\.sync\.aligned\.m16n8k16\.row\.col\.f32\.(?P<t>bf16|f16)\.(?P=t)\.f32 "
     r"\{<d0>,<d1>,<d2>,<d3>\},\{<a0>,<a1>,<a2>,<a3>\},\{<b0>,<b1>\},\{<c0>,<c1>,<c2>,<c3>\};",
     "mma<{t}>({d0},{d1},{d2},{d3},{a0},{a1},{a2},{a3},{b0},{b1},{c0},{c1},{c2},{c3})"),
    (r"mma\.sync\.aligned\.m16n8k8\.row\.col\.f32\.tf32\.tf32\.f32 "
     r"\{<d0>,<d1>,<d2>,<d3>\},\{<a0>,<a1>,<a2>,<a3>\},\{<b0>,<b1>\},\{<c0>,<c1>,<c2>,<c3>\};",
     "mma<simt_ptx::is_tf32>({d0},{d1},{d2},{d3},{a0},{a1},{a2},{a3},{b0},{b1},"
     "{c0},{c1},{c2},{c3})"),
    (rf"ldmatrix\.sync\.aligned\.m8n8\.x4(?P<trans>\.trans)?\.{SHARED}\.b16 "
     r"\{<r0>,<r1>,<r2>,<r3>\},\[<at>\];", "ldmatrix_x4<{trans}>({at},{r0},{r1},{r2},{r3})"),
    (rf"ldmatrix\.sync\.aligned\.m8n8\.x2(?P<trans>\.trans)?\.{SHARED}\.b16 \{{<r0>,<r1>\}},"
     r"\[<at>\];", "ldmatrix_x2<{trans}>({at},{r0},{r1})"),
    (rf"ldmatrix\.sync\.aligned\.m8n8\.x1(?P<trans>\.trans)?\.{SHARED}\.b16 \{{<r0>\}},\[<at>\];",
     "ldmatrix_x1<{trans}>({at},{r0})"),
    (rf"stmatrix\.sync\.aligned\.m8n8\.x4(?P<trans>\.trans)?\.{SHARED}\.b16 \[<at>\],"
     r"\{<r0>,<r1>,<r2>,<r3>\};", "stmatrix_x4<{trans}>({at},{r0},{r1},{r2},{r3})"),
    # tensor cores, by warpgroups
    (SCALED, "wgmma<{n},{t},{ta},{tb}>({c},{a},{b},{add})"),
    (FROM_REGISTERS, "wgmma_registers<{n},{t},{tb}>({c},{a0},{a1},{a2},{a3},{b},{add})"),
    (BYTES + r"<a>,<b>,\1,1,1;\}", "wgmma<{n},simt_ptx::is_e4m3,0,0>({c},{a},{b},{add})"),
    (BYTES + r"\{<a0>,<a1>,<a2>,<a3>\},<b>,\1,1,1;\}",
     "wgmma_registers<{n},simt_ptx::is_e4m3,0>({c},{a0},{a1},{a2},{a3},{b},{add})"),
    (r"wgmma\.fence\.sync\.aligned;", "wgmma_fence()"),
    (r"wgmma\.commit_group\.sync\.aligned;", "wgmma_commit()"),
    (r"wgmma\.wait_group\.sync\.aligned <n>;", "wgmma_wait({n})"),
    # copies by threads
    (rf"{COPY},(?P<n>4|8|16);", "cp_async({to},{from},{n},{n})"),
    (rf"{COPY},(?P<n>4|8|16),<valid>;", "cp_async({to},{from},{n},{valid})"),
    (r"cp\.async\.commit_group;", "cp_commit()"),
    (r"cp\.async\.wait_group <n>;", "cp_wait({n})"),
    (r"cp\.async\.wait_all;", "cp_wait_all()"),
    # copies by the engine
    (TENSOR + r"shared::cluster\.global\.mbarrier::complete_tx::bytes \[<to>\],\[<map>," + AT +
     r"\],\[<bar>\];", "tma_load<{rank}>({to},{map},{bar},0,{at})"),
    (TENSOR + r"shared::cluster\.global\.mbarrier::complete_tx::bytes\.multicast::cluster "
     r"\[<to>\],\[<map>," + AT + r"\],\[<bar>\],<blocks>;",
     "tma_load<{rank}>({to},{map},{bar},{blocks},{at})"),
    (TENSOR + r"global\.shared::cta\.bulk_group \[<map>," + AT + r"\],\[<from>\];",
     "tma_store<{rank}>({from},{map},{at})"),
    (r"cp\.async\.bulk\.shared::cluster\.global\.mbarrier::complete_tx::bytes \[<to>\],\[<from>\],"
     r"<bytes>,\[<bar>\];", "bulk_load({to},{from},{bytes},{bar})"),
    (r"cp\.async\.bulk\.shared::cluster\.shared::cta\.mbarrier::complete_tx::bytes \[<to>\],"
     r"\[<from>\],<bytes>,\[<bar>\];", "bulk_copy({to},{from},{bytes},{bar})"),
    (r"cp\.async\.bulk\.commit_group;", "bulk_commit()"),
    (r"cp\.async\.bulk\.wait_group(?P<read>\.read)? <n>;", "bulk_wait({n})"),
    (r"fence\.proxy\.async(?:\.shared::cta|\.global)?;", "proxy_fence()"),
    # barriers
    (r"(?:bar|barrier)\.sync <id>;", "named_barrier({id},0,true)"),
    (r"(?:bar|barrier)\.sync <id>,<n>;", "named_barrier({id},{n},true)"),
    (r"(?:bar|barrier)\.arrive <id>,<n>;", "named_barrier({id},{n},false)"),
    (rf"mbarrier\.init\.{SHARED}\.b64 \[<bar>\],<n>;", "mbarrier_init({bar},{n})"),
    (rf"mbarrier\.inval\.{SHARED}\.b64 \[<bar>\];", "mbarrier_invalidate({bar})"),
    (rf"mbarrier\.arrive\.{SHARED}\.b64 _,\[<bar>\];", "mbarrier_arrive({bar},0)"),
    (rf"mbarrier\.arrive\.expect_tx\.{SHARED}\.b64 _,\[<bar>\],<bytes>;",
     "mbarrier_arrive({bar},{bytes})"),
    (r"mbarrier\.arrive\.shared::cluster\.b64 _,\[<bar>\];", "mbarrier_arrive({bar},0)"),
    (r"mbarrier\.arrive\.expect_tx\.shared::cluster\.b64 _,\[<bar>\],<bytes>;",
     "mbarrier_arrive({bar},{bytes})"),
    (POLL, "mbarrier_try({over},{bar},{parity})"),
    (r"barrier\.cluster\.arrive\.release\.aligned;", "cluster_arrive()"),
    (r"barrier\.cluster\.wait\.acquire\.aligned;", "cluster_wait()"),
    # single accesses
    (rf"st\.{SHARED}\.(?:b32|u32|f32) \[<to>\],<v>;", "st_shared({to},{v})"),
    (r"st\.global\.(?:u32|b32|f32) \[<to>\],<v>;", "st_global({to},{v})"),
    (r"st\.shared::cluster\.v4\.f32 \[<to>\],\{<a>,<b>,<c>,<d>\};",
     "st_cluster({to},{a},{b},{c},{d})"),
    (r"ld\.shared::cluster\.(?:s32|u32) <v>,\[<from>\];", "ld_cluster({v},{from})"),
    (r"mapa\.shared::cluster\.u32 <to>,<from>,<rank>;", "map_shared({to},{from},{rank})"),
    (r"red\.global\.add\.v4\.f32 \[<to>\],\{<a>,<b>,<c>,<d>\};",
     "red_add_v4({to},{a},{b},{c},{d})"),
    (r"ld\.acquire\.gpu\.global\.s32 <v>,\[<from>\];", "ld_acquire({v},{from})"),
    (r"st\.(?P<how>relaxed|release)\.gpu\.global\.s32 \[<to>\],<v>;", "st_{how}({to},{v})"),
    # arithmetic and registers
    (r"ex2\.approx(?P<ftz>\.ftz)?\.f32 <y>,<x>;", "ex2({y},{x})"),
    (r"tanh\.approx\.f32 <y>,<x>;", "tanh_approx({y},{x})"),
    (r"cvt\.rn\.(?P<t>bf16|f16)x2\.f32 <r>,<high>,<low>;", "cvt_x2<{t}>({r},{high},{low})"),
    (PACK4, "cvt_e4m3x4({r},{x0},{x1},{x2},{x3})"),
    (r"cvt\.rna\.tf32\.f32 <r>,<x>;", "cvt_tf32({r},{x})"),
    (r"mov\.u32 <r>,%%(?P<of>tid|ctaid|ntid|nctaid)\.(?P<axis>[xyz]);", "mov_{of}({r}).{axis}"),
    (r"mov\.u32 <r>,%%laneid;", "mov_lane({r})"),
    (r"setmaxnreg\.(?P<way>inc|dec)\.sync\.aligned\.u32 <n>;", "setmaxnreg({n})"),
    # what fibers need no word for; and the empty instruction, a wall for the optimiser
    (r"fence\.mbarrier_init\.release\.cluster;|griddepcontrol\.(?:wait|launch_dependents);|;?",
     "nothing()"),
]
OPERAND = r"(?P<{}>%\d+|\d+)"
PATTERNS = [(re.compile(re.sub(r"(?<!P)<(\w+)>", lambda m: OPERAND.format(m[1]), pattern)), call)
            for pattern, call in TABLE]
REGISTER_OF = {"tid": "threadIdx", "ctaid": "blockIdx", "ntid": "blockDim", "nctaid": "gridDim"}


def squeeze(text):
    """PTX with no space but those between a mnemonic and its operands."""
    text = re.sub(r"//[^\n]*", "", text)
    text = re.sub(r" ?([,;{}\[\]]) ?", r"\1", " ".join(text.split()))
    return re.sub(r"([A-Za-z0-9_])([{\[])", r"\1 \2", text)


def call_of(ptx, operands):
    """The C++ call of an instruction, or None. operands: the C++ expressions of %0, %1, ..."""
    ptx = squeeze(ptx)
    for pattern, call in PATTERNS:
        if not (m := pattern.fullmatch(ptx)):
            continue
        used = set(re.findall(r"(?<!%)%(\d+)", ptx))
        if any(int(number) >= len(operands) for number in used):
            return None

        def value(text):
            return f"({operands[int(text[1:])]})" if text.startswith("%") else text

        named = {}
        for name, text in m.groupdict().items():
            if name == "c" and "," in (text or ""):
                columns = ", ".join(f"&{value(c)}" for c in text.split(","))
                named[name] = f"simt_ptx::Columns<{text.count(',') + 1}>{{{{{columns}}}}}"
            elif name == "at" and "," in (text or ""):
                named[name] = ", ".join(map(value, text.split(",")))
            elif name == "trans":
                named[name] = "simt_ptx::is_trans" if text else "simt_ptx::is_plain"
            elif name == "t":
                named[name] = "simt_ptx::is_" + text
            elif text is not None and text.startswith("%"):
                named[name] = value(text)
            else:
                named[name] = text or ""
        if call.startswith("mov_{of}"):
            return f"((void)({named['r']} = {REGISTER_OF[named['of']]}.{named['axis']}))"
        return "simt_ptx::" + re.sub(r"\{(\w+)\}", lambda w: named[w[1]], call)
    return None


# --- the text -------------------------------------------------------------------------------------

def walk(s, i=0):
    """(position, depth in brackets) of each character that is not inside of a string. A bracket
    that opens is deeper than what is before it, one that closes is not. The quote in 1'000 begins
    no string."""
    depth = 0
    while i < len(s):
        if s[i] == '"' or (s[i] == "'" and not s[i - 1].isalnum()):
            quote, i = s[i], i + 1
            while s[i] != quote:
                i += 2 if s[i] == "\\" else 1
        else:
            depth += (s[i] in "([{") - (s[i] in ")]}")
            yield i, depth
        i += 1


def close_of(s, i):
    """The bracket that closes the one at i."""
    return next(at for at, depth in walk(s, i) if depth == 0)


def split(s, separator):
    """At the separators outside of brackets and strings."""
    cuts = [-1, *(at for at, depth in walk(s) if depth == 0 and s[at] == separator), len(s)]
    return [s[a + 1:b] for a, b in zip(cuts, cuts[1:])]


def place(s, at, fallback):
    """file:line of a position, from the marks that clang -E leaves."""
    (line, file), end = fallback, 0
    for mark in re.finditer(r'(?m)^# (\d+) "([^"]*)"[^\n]*\n', s[:at]):
        line, file, end = int(mark[1]), mark[2], mark.end()
    return f"{file}:{line + s.count(chr(10), end, at)}"


def operand_list(text):
    """The C++ expressions of  "=r"(x), "r"(y)."""
    parts = (re.fullmatch(r'\s*(?:\[\w+\]\s*)?"[^"]*"\s*\((.*)\)\s*', part, re.S)
             for part in split(text, ","))
    return [m[1] for m in parts if m]


def translate_asm(body, where):
    sections = split(body, ":")  # '::' is two of them; in an operand's brackets it names a scope
    ptx = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', sections[0]))
    ptx = ptx.replace("\\n", " ").replace("\\t", " ")
    operands = [x for section in sections[1:3] for x in operand_list(section)]
    call = call_of(ptx, operands)
    if call is None:
        raise Unknown(f"{where}: error: simt has no model of the PTX instruction "
                      f"'{' '.join(ptx.split())[:120]}'; docs/simt_limits.md lists what it has")
    return call


def kernel_start(s, i):
    """Where the name of the kernel before '<<<' begins: namespace::name<arguments>."""
    while s[i - 1].isspace():
        i -= 1
    if s[i - 1] == ">":
        depth = 0
        while True:
            i -= 1
            depth += (s[i] == ">") - (s[i] == "<")
            if depth == 0:
                break
    while s[i - 1].isalnum() or s[i - 1] in "_:":
        i -= 1
    return i


def translate_launches(s):
    at = 0
    while (at := s.find("<<<", at)) >= 0:
        start = kernel_start(s, at)
        end = next(i for i, depth in walk(s, at + 3) if depth == 0 and s.startswith(">>>", i))
        opening = s.index("(", end + 3)
        closing = close_of(s, opening)
        kernel, arguments = s[start:at].strip(), s[opening + 1:closing]
        name = re.sub(r"\s+", " ", kernel).replace('"', "")
        # a lambda, because the kernel's name may be a template that is still to be deduced
        new = (f'simt::launch(simt::Config({s[at + 3:end]}), "{name}", [=](auto... simt_x) '
               f'__attribute__((no_sanitize("thread"))) {{ {kernel}(simt_x...); }}'
               f'{"," if arguments.strip() else ""}{arguments})')
        s = s[:start] + new + s[closing + 1:]
        at = start + 12
    return s


ATTRIBUTES = (r"(?:\s*(?:alignas\s*\([^()]*(?:\([^()]*\))?[^()]*\)|"
              r"__attribute__\s*\(\((?:[^()]|\([^()]*\))*\)\)))*")
DYNAMIC = re.compile(r"\bextern\s+" + ATTRIBUTES + r"\s*__simt_shared\b(" + ATTRIBUTES +
                     r")\s*([\w\s:]+?)(" + ATTRIBUTES + r")\s*\b(\w+)\s*\[\s*\]\s*;")
STATIC = re.compile(r"\b(?:static\s+)?((?:alignas\s*\([^;]*?\)\s*)?)__simt_shared\b([^;]*);")


def translate_shared(s):
    """Dynamic shared memory is one pointer. Static one becomes the members of a struct, of which
    each block has one: clang knows its size, and each name is a reference to a member."""
    s = DYNAMIC.sub(lambda m: f"{m[2]} *const {m[4]} = ({m[2]} *)simt::dynamic_smem();", s)
    count = 0

    def one(m):
        nonlocal count
        count += 1
        declaration = m[1] + m[2]
        names = []
        for part in split(re.sub(r"<[^<>]*>", "", declaration), ","):
            name = re.search(r"(\w+)\s*((?:\[[^\]]*\]\s*)*)$", part.strip())
            names.append(name[1])
        kind, value = f"Simt_shared_{count}", f"simt_shared_{count}"
        refs = " ".join(f"auto &{n} = {value}.{n};" for n in names)
        return (f"struct {kind} {{ {declaration}; }}; static char simt_key_{count}; "
                f"{kind} &{value} = *({kind} *)simt::static_smem(&simt_key_{count}, "
                f"sizeof({kind}), alignof({kind})); {refs}")

    return STATIC.sub(one, s)


ASM = re.compile(r"\b(?:asm|__asm__)\b(?:\s*(?:volatile|__volatile__))*\s*\(")


def translate_region(s, start):
    s = translate_shared(translate_launches(s))
    at = 0
    while m := ASM.search(s, at):
        closing = close_of(s, m.end() - 1)
        new = translate_asm(s[m.end():closing], place(s, m.start(), start))
        lines = s.count("\n", m.start(), closing + 1) - new.count("\n")
        s = s[:m.start()] + new + "\n" * max(lines, 0) + s[closing + 1:]
        at = m.start() + 1
    return s


def translate(text, own_headers):
    """Only what the user wrote: not the headers below own_headers, nor those of the system, whose
    line marks have the flag 3."""
    out, mine, is_mine, start = [], [], True, (1, "?")

    def flush():
        if mine:
            out.append(translate_region("".join(mine), start))
            mine.clear()

    for line in re.findall(r"[^\n]*\n|[^\n]+", text):
        if m := re.match(r'# (\d+) "([^"]*)"(.*)', line):
            new = ("3" not in m[3].split() and not m[2].startswith((own_headers, "<")))
            if new != is_mine:
                flush()
                is_mine = new
                start = (int(m[1]), m[2])
        (mine if is_mine else out).append(line)
    flush()
    return "".join(out)
