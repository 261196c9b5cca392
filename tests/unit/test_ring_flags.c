/* SPDX-License-Identifier: MIT
 *
 * test_ring_flags: what cli_parse makes of stage 06's flags: values and defaults, the layout that
 * follows from the mask, one name for a CPU row and a GPU row, refusals between flags.
 */
#include "cli_lines.h"

#include "attn_config.h"
#include "harness/cli/cli_internal.h"
#include "harness/device/device.h"

/* as stage 06's table: each name once for the CPU and once for the GPU */
static const Variant variants[] = {
    {"ring", ON_CPU, DTYPES_ALL, NULL, NULL, VARIANT_RANKS, "ring"},
    {"ulysses", ON_CPU, DTYPES_ALL, NULL, NULL, VARIANT_RANKS, "heads"},
    {"ring", ON_CUDA, DTYPES_16BIT, NULL, NULL, VARIANT_RANKS, "ring"},
    {"only-gpu", ON_CUDA, DTYPES_16BIT, NULL, NULL, VARIANT_RANKS, "ring"},
};
enum {
    FEATURES = STAGE_HAS_BACKWARD | STAGE_HAS_TRACE | STAGE_HAS_DETERMINISTIC | STAGE_HAS_VARLEN |
               STAGE_HAS_RANKS
};
static const Stage stage = {"unit", "00_unit", "?", 1, FEATURES, variants, 4};

TEST(defaults)
{
    const CliCase c = accepted("");
    const CliRing *r = &c.ring;
    assert_true(r->ranks == 4 && !r->ranks_given && r->nodes == 0 && r->timeout_s == 60.0);
    assert_true(r->transport == CLI_SIM && r->link == CLI_LINK_NCCL && r->partials == ATTN_F32);
    assert_true(!r->adversarial && !r->inject && !r->verify_hops && !r->trace_json);
    assert_string_equal(c.variant, "all");
}

TEST(values)
{
    CliCase c = accepted("--ranks 12 --nodes 3 --layout striped --partials bf16 --timeout 2.5 "
                         "--seed-schedule 18446744073709551615 --inject corrupt@11:7 --verify-hops "
                         "--method ring --trace-json t.json");
    assert_true(c.ring.ranks == 12 && c.ring.ranks_given && c.ring.nodes == 3);
    assert_true(c.ring.layout == RING_STRIPED && c.ring.partials == ATTN_BF16);
    assert_true(c.ring.timeout_s == 2.5 && c.ring.adversarial);
    assert_true(c.ring.schedule_seed == UINT64_MAX && c.ring.verify_hops);
    assert_true(c.ring.inject == CLI_CORRUPT && c.ring.inject_rank == 11);
    assert_int_equal(c.ring.inject_step, 7);
    assert_string_equal(c.variant, "ring");
    assert_string_equal(c.ring.trace_json, "t.json");
    assert_int_equal(accepted("--inject drop@0:0").ring.inject, CLI_DROP);
    assert_int_equal(accepted("--inject duplicate@0:0").ring.inject, CLI_DUPLICATE);
    assert_int_equal(accepted("--inject delay@0:0").ring.inject, CLI_DELAY);
    assert_int_equal(accepted("--inject exit@0:0").ring.inject, CLI_EXIT);
    assert_string_equal(accepted("--method auto").variant, "auto");
    assert_string_equal(accepted("--variant auto").variant, "auto");
    /* a trace shows ranks, not matrices: any size */
    c = accepted("--trace -N 1000 -d 64");
    assert_true(c.trace && c.Nq == 1000);
}

/* Zigzag under a plain causal mask, neighbours under a window, and what the user says wins. */
TEST(layouts)
{
    assert_int_equal(accepted("").ring.layout, RING_CONTIGUOUS);
    assert_int_equal(accepted("--causal").ring.layout, RING_ZIGZAG);
    assert_int_equal(accepted("--mask causal-upper-left").ring.layout, RING_ZIGZAG);
    assert_int_equal(accepted("--window -1,0").ring.layout, RING_ZIGZAG);
    assert_int_equal(accepted("--bundled=causal").ring.layout, RING_ZIGZAG);
    assert_int_equal(accepted("--causal --window 9,-1").ring.layout, RING_CONTIGUOUS);
    assert_int_equal(accepted("--window 9,9").ring.layout, RING_CONTIGUOUS);
    assert_int_equal(accepted("--mask full").ring.layout, RING_CONTIGUOUS);
    assert_int_equal(accepted("--causal --layout contiguous").ring.layout, RING_CONTIGUOUS);
    assert_int_equal(accepted("--layout zigzag --window 9,9").ring.layout, RING_ZIGZAG);
}

static int selected(const CliCase *c)
{
    int bits = 0;
    for (int i = 0; i < stage.variant_count; i++)
        bits |= cli_selects(c, &variants[i]) << i;
    return bits;
}

/* One name is two rows: --device decides, auto takes the GPU's as well where there is a GPU. */
TEST(rows)
{
    const int gpu = device_count() > 0;
    CliCase c = accepted("--device cpu");
    assert_int_equal(selected(&c), 3);
    c = accepted("--method ring");
    assert_true(!c.needs_cuda && selected(&c) == (gpu ? 5 : 1));
    c = accepted("--variant ring --device cpu --dtype f16");
    assert_true(!c.needs_cuda && selected(&c) == 1);
    c = accepted("--variant ring --device cuda --dtype f16");
    assert_true(c.needs_cuda && selected(&c) == 4);
    c = accepted("--variant only-gpu --dtype f16");
    assert_true(c.needs_cuda && selected(&c) == 8);
    c = accepted("--transport nccl --dtype f16 --link copy");
    assert_true(c.needs_cuda && c.device == CLI_DEVICE_CUDA && c.ring.link == CLI_LINK_COPY);
    expect_refused("--variant ring --device cuda"); /* float32: the GPU row does not take it */
    expect_refused("--variant only-gpu --device cpu --dtype f16");
#ifdef HAVE_MPI
    c = accepted("--transport mpi");
    assert_true(c.device == CLI_DEVICE_CPU && selected(&c) == 3);
    accepted("--transport mpi --nodes 3"); /* the world may have a multiple of 3 */
    expect_refused("--transport mpi --ranks 4 --nodes 3");
    expect_refused("--transport mpi --seed-schedule 1");
    expect_refused("--transport mpi --device cuda");
    expect_refused("--transport mpi --link copy");
#else
    expect_refused("--transport mpi");
#endif
}

TEST(refusals)
{
    each_line(expect_refused,
              "--ranks 4.0|--timeout -1|--timeout 86401|--inject drop@|--inject drop@1:|"
              "--inject drop:1@1|--inject @1:1|--inject none@1:1|--inject drop@-1:1|"
              "--inject drop@1:1x|--inject drop@1234567890123456789:1|"
              "--inject duplicateduplicate@1:1|--method all --trace-json t.json|"
              "--tensor-layout thd");
}
