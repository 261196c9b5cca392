# SPDX-License-Identifier: MIT
"""CUDA C++ to C++, for a CPU: the three things that C++ has no word for.

    kernel<<<grid, block, smem>>>(args)     simt::launch(...)
    __shared__ float tile[32];              a place in the block's own memory
    asm("ptx" : outputs : inputs)           a call of simt_ptx::..., see TABLE

What comes in has been through clang -E; all else is C++ already, with the headers in include/.
Lines stay lines, so clang's messages and every finding name the lines that the user wrote.

Never a guess: an instruction, modifier or operand that TABLE does not list is an error with its
line.

Interface: translate(text): C++. Unknown: a sentence with file and line.
"""
import re


class Unknown(Exception):
    """A sentence."""


# --- the instructions -----------------------------------------------------------------------------

# <x>: an operand, %3 or a number that stands in the text itself; <x:4>: four of them, <x:>: any
# number of them, with commas. <x=a|b>: one of these words; <=a|b>: one that the call does not need.
# <*p>: a register of the text's own. A second <x> is the same again.
SHARED = ".shared<=::cta|>"
COPY = SHARED + ".global<=.L2::64B|.L2::128B|.L2::256B|> [<to>],[<from>]"
LANDS = ".mbarrier::complete_tx::bytes"
WGMMA = "wgmma.mma_async.sync.aligned.m64n<n>k"
# whether the product is added to C stands in a predicate
ADD = "{.reg .pred <*p>;setp.ne.b32 <*p>,<add>,0;" + WGMMA
POLL = ("{.reg .pred <*p>;mbarrier.<=try|test>_wait.parity" + SHARED + ".b64 <*p>,[<bar>],<parity>;"
        "selp.u32 <over>,1,0,<*p>;}")
PACK4 = ("{.reg .b16 <*p>,<*q>;cvt.rn.satfinite.e4m3x2.f32 <*p>,<x1>,<x0>;"
         "cvt.rn.satfinite.e4m3x2.f32 <*q>,<x3>,<x2>;mov.b32 <r>,{<*p>,<*q>};}")
TABLE = [
    # tensor cores, by warps
    ("mma.sync.aligned.m16n8k16.row.col.f32.<t=bf16|f16>.<t>.f32 {<d:4>},{<a:4>},{<b:2>},{<c:4>};",
     "mma<{t}>({d},{a},{b},{c})"),
    ("mma.sync.aligned.m16n8k8.row.col.f32.<t=tf32>.<t>.f32 {<d:4>},{<a:4>},{<b:2>},{<c:4>};",
     "mma<{t}>({d},{a},{b},{c})"),
    (f"ldmatrix.sync.aligned.m8n8.x<n=1|2|4><trans=.trans|>{SHARED}.b16 {{<r:>}},[<at>];",
     "ldmatrix<{n},{trans}>({at},{r})"),
    (f"stmatrix.sync.aligned.m8n8.x4<trans=.trans|>{SHARED}.b16 [<at>],{{<r:4>}};",
     "stmatrix<4,{trans}>({at},{r})"),
    # tensor cores, by warpgroups; e4m3: 32 numbers a step, and no operand that may be transposed
    (ADD + "16.f32.<t=bf16|f16>.<t> {<c:>},<a>,<b>,<*p>,1,1,<ta=0|1>,<tb=0|1>;}",
     "wgmma<{n},{t},{ta},{tb}>({a},{b},{add},{c})"),
    (WGMMA + "16.f32.<t=bf16|f16>.<t> {<c:>},{<a:4>},<b>,<add=0|1>,1,1,<tb=0|1>;",
     "wgmma_registers<{n},{t},{tb}>({a},{b},{add},{c})"),
    (ADD + "32.f32.<t=e4m3>.<t> {<c:>},<a>,<b>,<*p>,1,1;}",
     "wgmma<{n},{t},0,0>({a},{b},{add},{c})"),
    (ADD + "32.f32.<t=e4m3>.<t> {<c:>},{<a:4>},<b>,<*p>,1,1;}",
     "wgmma_registers<{n},{t},0>({a},{b},{add},{c})"),
    ("wgmma.fence.sync.aligned;", "wgmma_fence()"),
    ("wgmma.commit_group.sync.aligned;", "wgmma_commit()"),
    ("wgmma.wait_group.sync.aligned <n>;", "wgmma_wait({n})"),
    # copies by threads; .cg copies 16 bytes only
    (f"cp.async.ca{COPY},<n=4|8|16>;", "cp_async({to},{from},{n},{n})"),
    (f"cp.async.cg{COPY},<n=16>;", "cp_async({to},{from},{n},{n})"),
    (f"cp.async.ca{COPY},<n=4|8|16>,<valid>;", "cp_async({to},{from},{n},{valid})"),
    (f"cp.async.cg{COPY},<n=16>,<valid>;", "cp_async({to},{from},{n},{valid})"),
    ("cp.async.commit_group;", "cp_commit()"),
    ("cp.async.wait_group <n>;", "cp_wait({n})"),
    ("cp.async.wait_all;", "cp_wait_all()"),
    # copies by the engine
    (f"cp.async.bulk.tensor.<rank=2|3|4|5>d.shared::cluster.global{LANDS} "
     "[<to>],[<map>,{<at:>}],[<bar>];", "tma_load<{rank}>({to},{map},{bar},0,{at})"),
    (f"cp.async.bulk.tensor.<rank=2|3|4|5>d.shared::cluster.global{LANDS}.L2::cache_hint "
     "[<to>],[<map>,{<at:>}],[<bar>],<policy>;",
     "tma_load_hinted<{rank}>({to},{map},{bar},{policy},{at})"),
    ("createpolicy.fractional.L2::<how=evict_first|evict_normal>.b64 <policy>,1.0;",
     "policy_{how}({policy})"),
    (f"cp.async.bulk.tensor.<rank=2|3|4|5>d.shared::cluster.global{LANDS}.multicast::cluster "
     "[<to>],[<map>,{<at:>}],[<bar>],<blocks>;",
     "tma_load<{rank}>({to},{map},{bar},{blocks},{at})"),
    ("cp.async.bulk.tensor.<rank=2|3|4|5>d.global.shared::cta.bulk_group [<map>,{<at:>}],[<from>];",
     "tma_store<{rank}>({from},{map},{at})"),
    (f"cp.async.bulk.shared::cluster.global{LANDS} [<to>],[<from>],<bytes>,[<bar>];",
     "bulk_load({to},{from},{bytes},{bar})"),
    (f"cp.async.bulk.shared::cluster.shared::cta{LANDS} [<to>],[<from>],<bytes>,[<bar>];",
     "bulk_copy({to},{from},{bytes},{bar})"),
    ("cp.async.bulk.commit_group;", "bulk_commit()"),
    ("cp.async.bulk.wait_group<=.read|> <n>;", "bulk_wait({n})"),
    ("fence.proxy.async<=.shared::cta|.global|>;", "proxy_fence()"),
    # barriers
    ("<=bar|barrier>.sync <id>;", "named_barrier({id},0,true)"),
    ("<=bar|barrier>.sync <id>,<n>;", "named_barrier({id},{n},true)"),
    ("<=bar|barrier>.arrive <id>,<n>;", "named_barrier({id},{n},false)"),
    (f"mbarrier.init{SHARED}.b64 [<bar>],<n>;", "mbarrier_init({bar},{n})"),
    (f"mbarrier.inval{SHARED}.b64 [<bar>];", "mbarrier_invalidate({bar})"),
    ("mbarrier.arrive.shared<=::cta|::cluster|>.b64 _,[<bar>];", "mbarrier_arrive({bar},0)"),
    ("mbarrier.arrive.expect_tx.shared<=::cta|::cluster|>.b64 _,[<bar>],<bytes>;",
     "mbarrier_arrive({bar},{bytes})"),
    (POLL, "mbarrier_try({over},{bar},{parity})"),
    ("fence.mbarrier_init.release.cluster;", "mbarrier_init_fence()"),
    ("barrier.cluster.arrive.release.aligned;", "cluster_arrive(false)"),
    ("barrier.cluster.arrive.relaxed.aligned;", "cluster_arrive(true)"),
    ("barrier.cluster.wait.acquire.aligned;", "cluster_wait()"),
    # single accesses
    (f"st{SHARED}.<=b32|u32|f32> [<to>],<v>;", "st_shared({to},{v})"),
    ("st.global.<=b32|u32|f32> [<to>],<v>;", "st_global({to},{v})"),
    ("st.shared::cluster.v4.f32 [<to>],{<v:4>};", "st_cluster({to},{v})"),
    (f"st.async<=.weak|>.shared::cluster{LANDS}.v<n=2|4>.f32 [<to>],{{<v:>}},[<bar>];",
     "st_async<{n}>({to},{bar},{v})"),
    ("ld.shared::cluster.<=s32|u32> <v>,[<from>];", "ld_cluster({v},{from})"),
    ("mapa.shared::cluster.u32 <to>,<from>,<rank>;", "map_shared({to},{from},{rank})"),
    ("red.global.add.v4.f32 [<to>],{<v:4>};", "red_add_v4({to},{v})"),
    ("ld.acquire.gpu.global.s32 <v>,[<from>];", "ld_acquire({v},{from})"),
    ("st.<how=relaxed|release>.gpu.global.s32 [<to>],<v>;", "st_{how}({to},{v})"),
    # arithmetic and registers
    ("ex2.approx<=.ftz|>.f32 <y>,<x>;", "ex2({y},{x})"),
    ("tanh.approx.f32 <y>,<x>;", "tanh_approx({y},{x})"),
    ("cvt.rn.<t=bf16|f16>x2.f32 <r>,<high>,<low>;", "cvt_x2<{t}>({r},{high},{low})"),
    (PACK4, "cvt_e4m3x4({r},{x0},{x1},{x2},{x3})"),
    ("cvt.rna.tf32.f32 <r>,<x>;", "cvt_tf32({r},{x})"),
    ("mov.u32 <r>,%%<of=tid|ctaid|ntid|nctaid>.<axis=x|y|z>;", "mov({r},{of}.{axis})"),
    ("mov.u32 <r>,%%laneid;", "mov_lane({r})"),
    ("setmaxnreg.<=inc|dec>.sync.aligned.u32 <n>;", "setmaxnreg({n})"),
    # what fibers need no word for; and the empty instruction, a wall for the optimiser
    ("<=griddepcontrol.wait;|griddepcontrol.launch_dependents;|;|>", "nothing()"),
]
REGISTER_OF = {"tid": "threadIdx", "ctaid": "blockIdx", "ntid": "blockDim", "nctaid": "gridDim"}


def regex_of(instruction):
    known = set()

    def form(m):
        own, name, words, count = m.groups()
        if name in known:
            return f"(?P={name})"
        known.update(filter(None, [name]))
        text = r"\w+" if own else r"%?\d+"
        if words is not None:
            text = words.replace(r"\|", "|")
        elif count is not None:
            text += r"(?:,%?\d+)" + (f"{{{int(count) - 1}}}" if count else "*")
        return f"(?P<{name}>{text})" if name else f"(?:{text})"

    return re.compile(re.sub(r"<(\\\*)?(\w*)(?:=([^>]*)|:(\d*))?>", form, re.escape(instruction)))


PATTERNS = [(regex_of(instruction), call) for instruction, call in TABLE]


def squeeze(text):
    """PTX with no space but those between a mnemonic and its operands."""
    text = re.sub(r"//[^\n]*", "", text)
    text = re.sub(r" ?([,;{}\[\]]) ?", r"\1", " ".join(text.split()))
    return re.sub(r"([A-Za-z0-9_])([{\[])", r"\1 \2", text)


def expression(name, text, operands):
    """What stands in the call for the <name> that is `text` in the instruction."""
    if name == "t":
        return "simt_ptx::is_" + text
    if name == "trans":
        return "simt_ptx::is_trans" if text else "simt_ptx::is_plain"
    if name == "of":
        return REGISTER_OF[text]
    return ", ".join(f"({operands[int(x[1:])]})" if x.startswith("%") else x
                     for x in text.split(","))


def call_of(ptx, operands):
    """The C++ call of an instruction, or None. operands: the C++ expressions of %0, %1, ..."""
    ptx = squeeze(ptx)
    for pattern, call in PATTERNS:
        if m := pattern.fullmatch(ptx):
            try:
                return "simt_ptx::" + call.format(**{
                    name: expression(name, text, operands) for name, text in m.groupdict().items()})
            except IndexError:  # an operand that asm does not list
                return None
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


def translate_shared(s, start):
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
            if not name or re.search(r"(?<![=!<>])=(?!=)|{", part):
                raise Unknown(f"{place(s, m.start(), start)}: error: simt takes a __shared__ "
                              "variable without an initialiser, of a type with a name")
            names.append(name[1])
        kind, value = f"Simt_shared_{count}", f"simt_shared_{count}"
        refs = " ".join(f"auto &{n} = {value}.{n};" for n in names)
        return (f"struct {kind} {{ {declaration}; }}; static char simt_key_{count}; "
                f"{kind} &{value} = *({kind} *)simt::static_smem(&simt_key_{count}, "
                f"sizeof({kind}), alignof({kind})); {refs}")

    return STATIC.sub(one, s)


ASM = re.compile(r"\b(?:asm|__asm__)\b(?:\s*(?:volatile|__volatile__))*\s*\(")


def translate_region(s, start):
    s = translate_shared(translate_launches(s), start)
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
