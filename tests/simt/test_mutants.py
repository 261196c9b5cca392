#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Shipped rungs with one line changed: `check` must name the mistake, or the oracle reject it.

usage: test_mutants.py [NAME...]

Each mutant is a replacement in a rung's file or in a unit that it includes. It is compiled with the
rung's own flags, for one type and head dimension, and takes the rung's place in the program that
test_rungs.py judges the shipped rungs with. `says` is how the title of one finding must begin;
"oracle": no rule is broken, the result is wrong. Both lines must stand in the report.
"""
import concurrent.futures
import functools
import os
import pathlib
import re
import subprocess
import sys
import tempfile

from programs import ROOT, build_folder, run
from tap import Tap

A, B, C, D = ("03_flash_forward/cuda/" + name for name in
              ("v0_fa1.cu", "v1_fa2.cu", "v5_cp_async.cu", "v9_wgmma.cu"))
E, F = "03_flash_forward/cuda/v10_warp_specialised.cu", "02_tiled_softmax/cuda/v0_block_per_row.cu"
G = "04_flash_backward/cuda/v0_atomics.cu"
P, PAIRS = "04_flash_backward/cuda/v14_cluster_pair.cu", "common/units/wgmma_pair.cuh"
S = "04_flash_backward/cuda/v15_persistent.cu"
HOPPER, ROWS = "common/units/hopper.cuh", "common/units/wgmma_rows.cuh"
TILE = "common/units/warp_tile.cuh"
LONG, TINY, PAIR = ["-N", "900"], ["-N", "70"], ["-N", "250"]
TILES = ["-N", "64", "-H", "40"]  # laps of one tile
RACE = "race: "
MUTANTS = [
    # name, rung, changed file, old, new, says, flags
    ("v0_no_syncwarp", A, A, "__syncwarp(); /* all lanes", "/* all lanes", RACE, TINY),
    ("v0_q_overwritten", A, A, "__syncthreads(); /* Q_smem may", "/* Q_smem may", RACE, TINY),
    ("v0_tiles_not_there", A, A, "__syncthreads(); /* the tiles", "/* the tiles", RACE, TINY),
    ("v0_o_not_zeroed", A, A, "O[i * Q_step + x] = 0.0f;", ";",
     "read of memory that nobody", TINY),
    ("v0_l_not_zeroed", A, A, "= 0.0f;\n        }", "+= 0.0f;\n        }",
     "read of memory that nobody", TINY),
    ("v0_barrier_in_branch", A, A, "        __syncthreads(); /* so may",
     "        if (warp) __syncthreads(); /* so may", "", TINY),
    ("v1_tile_overwritten", B, B, "__syncthreads(); /* nobody", "/* nobody", RACE, TINY),
    ("v1_tile_not_there", B, B, "p.Nk);\n        __syncthreads();", "p.Nk);", RACE, TINY),
    ("v1_smem_too_small", B, B, "C::THREADS, C::SMEM, stream", "C::THREADS, C::SMEM - 256, stream",
     "out of bounds of shared", TINY),
    ("v1_row_too_many", B, B, "if (i >= p.Nq)", "if (i > p.Nq)", "oracle", TINY),
    ("v1_lane_skips", B, B, "if (i < p.Nq) /* the same", "if (i < p.Nq && lane != 5) /* the same",
     "", TINY),
    ("v1_too_many_threads", B, B, "C::THREADS, C::SMEM, stream", "C::THREADS * 16, C::SMEM, stream",
     "more than the machine has", TINY),
    ("v1_too_much_smem", B, B, "C::THREADS, C::SMEM, stream", "C::THREADS, 300000, stream",
     "more than the machine has", TINY),
    ("v1_endless", B, B, "j < tiles.end; j++)", "j < tiles.end; j += 0)", "no progress", TINY),
    ("v1_scale_missing", B, B, "step_row<C>(p.scale,", "step_row<C>(1.0f,", "oracle", TINY),
    ("v5_no_wait", C, C, "copy_async_wait<0>();\n        __syncthreads",
     "\n        __syncthreads", "use of bytes of a copy", LONG),
    ("v5_one_group_short", C, C, "copy_async_wait<0>();\n        __syncthreads",
     "copy_async_wait<1>();\n        __syncthreads", "use of bytes of a copy", LONG),
    ("v5_no_barrier", C, C, "__syncthreads(); /* tile j is", "/* tile j is", RACE, LONG),
    ("v5_one_stage", C, C, "C::Q_BYTES + (j & 1) * C::STAGE_BYTES", "C::Q_BYTES", "", LONG),
    ("v5_tail_from_memory", C, C, "row < left ? from : base, row < left", "from, true",
     "out of bounds of global", TINY),
    ("v5_misaligned", C, C, "* stride + chunk * 8;", "* stride + chunk * 8 + 1;",
     "misaligned access", TINY),
    ("v9_q_not_waited_for", D, D, "barrier_wait(Q_full, 0, WAIT_Q);", ";",
     "use of bytes of a copy", TINY),
    ("v9_k_not_waited_for", D, D, "barrier_wait(keys_full + 8 * stage, parity, WAIT_K);", ";",
     "use of bytes of a copy", LONG),
    ("v9_no_fence", D, D, "wgmma_begin();\n        multiply_QK", "multiply_QK",
     "wgmma without wgmma.fence", LONG),
    ("v9_no_second_fence", D, D, "wgmma_begin();\n        multiply_PV", "multiply_PV",
     "wgmma without wgmma.fence", LONG),
    ("v9_s_not_waited_for", D, D, "wgmma_wait<0>(S);", ";",
     "use of an accumulator before", LONG),
    ("v9_o_not_waited_for", D, D, "wgmma_wait<0>(rows.O);", ";",
     "use of an accumulator before", LONG),
    ("v9_stage_released_early", D, D, "__syncthreads(); /* all warps are done", "/* all warps are",
     RACE, LONG),
    ("v9_barrier_not_made", D, D, "barrier_init(Q_full, 1);", ";", "wrong use of an mbarrier",
     TINY),
    ("v9_barrier_counts_2", D, D, "barrier_init(Q_full, 1);", "barrier_init(Q_full, 2);",
     "deadlock", TINY),
    ("v9_half_the_bytes", D, D, "2 * C::K_BYTES);", "C::K_BYTES);", "deadlock", TINY),
    ("v9_wrong_phase", D, D, "parity ^= stage;", ";", "", LONG),
    ("v9_store_not_waited_for", D, D, "    store_tiles_read();\n", "\n",
     "a thread ends before", TINY),
    ("v9_no_proxy_fence", D, HOPPER,
     'asm volatile("fence.proxy.async.shared::cta;" ::: "memory");', ";",
     "no fence.proxy.async", TINY),
    ("v9_tile_misplaced", D, HOPPER, '"[%0], [%1, {%3, %4, %3, %5, %6}], [%2];" ::"r"(to_smem)',
     '"[%0], [%1, {%3, %4, %3, %5, %6}], [%2];" ::"r"(to_smem + 16)', "misaligned access", TINY),
    ("v10_k_never_freed", E, E, "release(barrier + C::K_FREE);", ";", "deadlock", LONG),
    ("v10_k_freed_too_early", E, E, "wgmma_wait<0>(S);\n        release(barrier + C::K_FREE);",
     "release(barrier + C::K_FREE);\n        wgmma_wait<0>(S);", "", LONG),
    ("v10_k_not_free", E, E, "barrier_wait(barrier + C::K_FREE, place.parity ^ 1, WAIT_FREE_K);",
     ";", "", LONG),
    ("pair_not_waited_for", P, P, "barrier_wait(smem + C::IN_FULL + 8 * stage, parity, WAIT_dS);",
     ";", "use of bytes of a copy", PAIR),
    ("pair_one_place_for_what_comes", P, P, "there + C::dS_IN + place * C::SCORES_BYTES",
     "there + C::dS_IN", "", PAIR),
    ("pair_p_not_awaited", P, P, "threads_sync(P_OF + other, CONSUMER_THREADS);",
     "threads_arrive(P_OF + other, CONSUMER_THREADS);", "read of memory that nobody wrote", PAIR),
    ("pair_q_free_for_one", P, PAIRS, "barrier_init(smem + C::Q_FREE + 8 * n, 2 * warps);",
     "barrier_init(smem + C::Q_FREE + 8 * n, warps);", "", PAIR),
    ("pair_no_first_barrier", P, P, "cluster_arrive();\n    cluster_wait(); /* the other",
     "__syncthreads(); /* the other", RACE, PAIR),
    ("pair_no_last_barrier", P, P, "    cluster_wait(); /* the other block has no more",
     "    /* the other block has no more", "out of bounds of shared", PAIR),
    ("staying_ticket_not_there", S, S,
     "barrier_wait(smem + C::KEYS_FULL + 8 * (lap % 2), lap / 2 % 2, WAIT_K);", ";", "", LONG),
    ("staying_q_not_counted", S, S, "CONSUMER_THREADS / 32 + 3);",
     "CONSUMER_THREADS / 32 + 2);", "",
     ["-N", "250", "-H", "8"]),  # where laps are long, dO_FREE says it, too
    ("staying_keys_not_free", S, S,
     "barrier_wait(smem + C::KEYS_FREE + 8 * (lap % 2), lap / 2 % 2 ^ 1, WAIT_FREE_K);", ";", "",
     ["-N", "100", "-H", "20"]),  # short laps: where they are long, dO_FREE says it, too
    ("staying_ds_of_the_lap_before", S, S,
     "barrier_wait(smem + C::dS_FREE + 8 * stage, parity ^ 1, WAIT_FREE_dS);", ";", RACE, LONG),
    ("staying_dk_over_dv", S, S, "barrier_wait(smem + C::SUM_FREE + 8 * warpgroup,",
     "if (parity == 1) barrier_wait(smem + C::SUM_FREE + 8 * warpgroup,", RACE, LONG),
    ("staying_dv_before_dk_is_noticed", S, S, "barrier_wait(smem + C::SUM_FREE + 8 * warpgroup,",
     "if (parity == 0) barrier_wait(smem + C::SUM_FREE + 8 * warpgroup,", RACE, TILES),
    ("staying_dk_not_told", S, S, "barrier_arrive(free); /* seen", "/* seen", "deadlock",
     TILES),
    ("staying_dv_not_read", S, S, "store_tiles_read();\n        barrier_arrive(free);",
     "barrier_arrive(free);", RACE, LONG),
    ("staying_dk_not_read", S, S, "store_tiles_read();\n        barrier_arrive(smem",
     "barrier_arrive(smem", "use of bytes of a copy", TILES),
    ("staying_sums_not_fenced", S, S, "fence_async();\n    report", "report",
     "no fence.proxy.async", LONG),
    ("staying_no_ds_is_v", S, S, "K - (C::D == 64 ? warpgroup * C::dS_PANEL_BYTES : 0)", "K", RACE,
     TILES),
    ("v5_out_of_an_array", C, TILE, "n < C::D / 8; n++) {\n        rows.O_reg",
     "n <= C::D / 8; n++) {\n        rows.O_reg", "out of bounds of an array", TINY),
    ("v9_rows_past_the_tensor", D, HOPPER, "sizes[5] = {PANEL, (cuuint64_t)N,",
     "sizes[5] = {PANEL, (cuuint64_t)N + 64,", "out of bounds of global", TINY),
    ("v9_map_of_rank_4", D, HOPPER, "encode_map(map, MAP_TYPE<T>, 5,",
     "encode_map(map, MAP_TYPE<T>, 4,", "a tile that its tensor map", TINY),
    ("v9_barrier_for_100", D, ROWS, "threads_sync(id, 128);  /* and no",
     "threads_sync(id, 100); /* and no", "wrong count of a named barrier", TINY),
    ("v9_barrier_for_256", D, ROWS, "threads_sync(id, 128);  /* and no",
     "threads_sync(id, 256); /* and no", "", TINY),
    ("backward_adds_plainly", G, G, "atomicAdd(dQ_i + 32 * x, dQ_reg[n][x]);",
     "dQ_i[32 * x] += dQ_reg[n][x];", RACE, ["-N", "200"]),
    ("softmax_no_barrier", F, F, "__syncthreads(); /* nobody may", "/* nobody may", RACE, TINY),
    ("softmax_out_of_array", F, F, "values_smem[t + half];", "values_smem[t + half + 1];",
     "", TINY),
]


@functools.cache
def commands(stage):
    """Of the program of a stage's rungs: all commands that make it, the last one links."""
    return subprocess.run(["ninja", "-C", str(build_folder()), "-t", "commands",
                           f"common/simt/programs/simt_{stage}"], stdout=subprocess.PIPE,
                          text=True, check=True).stdout.strip().split("\n")


def one_dimension(d):
    """The text of problem.cuh that compiles kernels for this d only."""
    text = (ROOT / "common/problem.cuh").read_text(encoding="utf-8")
    text, count = re.subn(r"\(\(p\)->d == 64 \? (launch<(?:T, )?)64>\(p\) : launch<(?:T, )?128>"
                          r"\(p\)\)", rf"\g<1>{d}>(p)", text)
    assert count == 2, "problem.cuh launches for d = 64 and 128 in another way"
    return text


def make_changed(rung, changed, text, folder, d):
    """The program of the rung's stage in which the text stands for the changed file, and what the
    compiler says: of the rung bf16 or float32 only, and this head dimension."""
    kernel = folder / pathlib.Path(rung).name
    for unit in (ROOT / rung).parent.glob("*.cuh"):
        (folder / unit.name).write_text(unit.read_text(encoding="utf-8"), encoding="utf-8")
    (folder / "units").mkdir()
    (folder / "problem.cuh").write_text(one_dimension(d), encoding="utf-8")
    kernel.write_text((ROOT / rung).read_text(encoding="utf-8"), encoding="utf-8")
    place = kernel if changed == rung else folder / "units" / pathlib.Path(changed).name
    place.write_text(text, encoding="utf-8")
    *lines, linked = commands(rung[:2])
    compiled = next(line for line in lines if "compile.py" in line
                    and line.endswith(f"/{kernel.name}.o")).split()
    out = f"{kernel}.o"
    words = {str(ROOT / rung): str(kernel), compiled[-1]: out,
             compiled[compiled.index("-MF") + 1]: f"{kernel}.d"}
    steps = [[*compiled[:3], f"-I{folder}", "-DATTN_NO_CUDA_F16",
              *(words.get(word, word) for word in compiled[3:])],
             ["sh", "-c", re.sub(r"-o \S+", f"-o {folder}/program {out}", re.sub(
                 rf"\S+/{kernel.name}\.o", "", linked), count=1)]]
    for step in steps:
        done = subprocess.run(step, cwd=build_folder(), stdout=subprocess.PIPE, check=False,
                              stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            return None, done.stdout[-1500:]
    return folder / "program", ""


def make(mutant, folder, d):
    """The mutant's program, or what the compiler says."""
    _name, rung, changed, old, new = mutant[:5]
    text = (ROOT / changed).read_text(encoding="utf-8")
    if text.count(old) != 1:
        return None, f"{changed} holds {text.count(old)} times: {old}"
    return make_changed(rung, changed, text.replace(old, new), folder, d)


def judge(mutant):
    name, rung, _changed, _old, _new, says, flags = mutant
    with tempfile.TemporaryDirectory() as folder:
        d = "256" if rung == P else "64"
        program, why = make(mutant, pathlib.Path(folder), d)
        if not program:
            return mutant, False, why
        dtype = "f32" if rung in (A, B, F, G) else "bf16"
        words = ["--device", "cuda", "--variant", pathlib.Path(rung).stem, "--dtype", dtype,
                 "-H", "1", "-d", d, *flags]
        done = run([program], words, SIMT_CHECK="1", SIMT_SECONDS="1")
    text = done.stdout + done.stderr
    titles = re.findall(r"(?m)^simt: (.*)", done.stderr)
    if says == "oracle":
        good = done.returncode == 1 and "0 findings" in text and " WRONG " in text
    else:
        good = done.returncode != 0 and any(t.startswith(says) for t in titles
                                            if not re.match(r"\d+ findings?,", t))
        good = good and (re.search(r"\.cuh?:\d+", done.stderr) is not None)
    return mutant, good and ":0:" not in text, text


def main():
    tap = Tap()
    chosen = [m for m in MUTANTS if len(sys.argv) < 2 or m[0] in sys.argv[1:]]
    if os.environ.get("ATTN_TEST_QUICK"):
        chosen = chosen[::8]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for mutant, good, text in pool.map(judge, chosen):
            tap.ok(good, f"{mutant[0]}: {mutant[5] or 'a finding'}", text[:2500])
    sys.exit(tap.done())


if __name__ == "__main__":
    main()
