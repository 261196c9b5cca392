/* SPDX-License-Identifier: MIT
 *
 * ring_burst: how can one attention span more tokens than one GPU can hold, and when is the
 * communication free?
 *
 *     method        forward                     backward
 *     ring-minimal  K, V in a ring              K, V and dK, dV in a ring; nothing overlaps
 *     ring          K, V in a ring              K, V and dK, dV in a ring, the other way round
 *     burst         K, V in a ring              Q, dO, lse, delta in a ring, dQ one step behind
 *     allgather     everybody gets all K, V     the same; dK, dV are reduce-scattered
 *     ulysses       from all heads of some tokens to all tokens of some heads, and back
 *     ring-double   ring in two levels, inside a node and between nodes
 *     burst-double  burst likewise
 *
 * The answer: softmax over parts is a sum weighted by exp(lse), so a rank can see the keys of all
 * others one block after the other, and never holds more than two of them. While it computes on
 * one, the next is under way: free as long as a block's computation, which grows with the square
 * of its tokens, takes longer than its journey, which grows with their number.
 *
 *     ring_burst                                   small: 4 ranks, all methods, checked
 *     ring_burst -N 4096 --causal --ranks 8 --backward
 *     ring_burst --trace --causal --method ring    who holds what at which step, one screen
 *     ring_burst --method auto --kv-heads 1 --causal --backward
 *     ring_burst --inject corrupt@1:2 --verify-hops
 *     mpirun -n 4 ring_burst --transport mpi
 *
 * Sources: Liu et al. 2023 (arXiv 2310.01889), Sun et al. 2024, BurstAttention (2403.09347),
 * Brandon et al. 2023, striped (2311.09431), Jacobs et al. 2023, Ulysses (2309.14509).
 */
#include "harness/stage_main.h"
#include "runtime/simulate.h"
#include "show/show.h"
#include "transports/mpi/processes.h"

static Variant variants[2 * RING_METHODS];

/* A row for each method on each device, in the order of reading. */
static int list_methods(void)
{
    static const RingMethod order[] = {RING_METHOD_RING_MINIMAL, RING_METHOD_RING,
                                       RING_METHOD_BURST,        RING_METHOD_ALLGATHER,
                                       RING_METHOD_ULYSSES,      RING_METHOD_RING_DOUBLE,
                                       RING_METHOD_BURST_DOUBLE};
    int count = 0;
    for (int gpu = 0; gpu < 2; gpu++)
        for (size_t m = 0; m < sizeof order / sizeof *order; m++) {
            const RingMethodRow *row = ring_method_row(order[m]);
            const unsigned copies = row->flags & RING_COPIES ? VARIANT_COPIES : 0;
            if (gpu && row->flags & RING_CPU_ONLY)
                continue;
            variants[count++] =
                (Variant){.name = ring_method_name(order[m]),
                          .device = gpu ? ON_CUDA : ON_CPU,
                          .dtypes = DTYPES_ALL,
                          .traits = VARIANT_RANKS | copies | (gpu ? VARIANT_TENSOR_CORES : 0),
                          .idea = row->idea};
        }
    return count;
}

int main(int argc, char **argv)
{
    static const StageMain ring_burst = {.variants = variants,
                                         .other_case = ring_show_case,
                                         .enter = ring_mpi_enter,
                                         .leave = ring_mpi_leave};
    const Stage stage = {"ring_burst",
                         "06_ring_burst",
                         "How can one attention span more tokens than one GPU can hold, and when "
                         "is the communication free?",
                         RING_BURST_ABI_VERSION,
                         STAGE_HAS_BACKWARD | STAGE_HAS_TRACE | STAGE_HAS_DETERMINISTIC |
                             STAGE_HAS_VARLEN | STAGE_HAS_RANKS,
                         variants,
                         list_methods()};
    ring_show_serve(argc, argv); /* the process of a user's shared object: does not return */
    ring_mpi_hush();             /* of several processes only rank 0 speaks */
    return ring_mpi_status(stage_main(&stage, &ring_burst, argc, argv));
}
