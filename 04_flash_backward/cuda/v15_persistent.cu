/* SPDX-License-Identifier: MIT
 *
 * v15_persistent: v12 whose blocks of threads stay: each takes one block of 128 keys after another.
 *
 * A block of v12 fills its multiprocessor. When its keys are done, the next one starts with
 * nothing: barriers, K, V, the first Q and dO; and nothing is multiplied until these have come.
 * With 1024 queries it has only 8 tiles to pay for that (d = 64). Here there are as many blocks of
 * threads as multiprocessors, as in stage 03's v14, and each runs lap after lap, a block of keys
 * each:
 *
 *   - K and V have two places: those of the next lap come while this one's are read.
 *   - Tiles count on from lap to lap. So the pipeline stages of Q and dO, and their barriers, know
 *     nothing of laps. A lap's last dS is given back in the first step of the next lap, where the
 *     loop gives one back anyway.
 *   - dV, and then dK, leave through the warpgroup's own 64 keys of V, which nobody else reads. So
 *     the warpgroups no longer meet, and one may begin a lap while the other still ends the one
 *     before. Two threads order the stores, one for each warpgroup. A warpgroup waits for the copy
 *     engine only before it writes dK, until dV has left. (K is no room for dK: the other warpgroup
 *     may still read it, for dQ.)
 *   - Turns begin anew in each lap. Warpgroup 1 hands over the first one when it has begun the lap;
 *     warpgroup 0 has made dS of its first tile by then, and waits.
 *   - Two threads load: one K, V and dO, the other Q. A tile is one copy, where v12 needs two for
 *     128 queries. Of two stages one is being read, so whatever a thread does between the moment
 *     when the other is free and the order to fill it is lost.
 *   - Order. Before, the hardware gave the next block of keys to whoever was free. Now a block of
 *     threads draws a ticket, a number from a counter, when all dO of its lap has been asked for
 *     and a place for keys is free. Drawn earlier, it would lie with somebody busy while others are
 *     idle. (Shares dealt out beforehand, as in stage 03, can fall in step with the heads: one
 *     block got half as much again.)
 *   - Sections. Under a causal mask the first keys of a head are the longest, and long ones should
 *     come first. So a section, as many heads as it takes to fill the GPU, is walked through side
 *     by side: the first keys of all its heads, then the second. More heads would need more of the
 *     L2 cache. Without a mask all are equally long, and a section is one head.
 *
 * What v13 brings is not in it: all that tells it from v12 stands above, the order of the blocks
 * under a mask too. With d = 64 and 1024 queries v13 is faster.
 *
 * Prediction (H200, bf16), made when dK and dV still left from registers: 10 % at d = 64 and
 * N = 1024, 6 % at d = 128; 2 % at N = 16384.
 * Measured: docs/lab/04_hopper.md, beside the prediction.
 *
 * Interface:
 * - RUNG at the end: f16 and bf16, d = 64 and 128, on sm_90.
 */
#include "problem.cuh"
#include "units/wgmma_turns.cuh"

/* The other place of K and V, for odd laps. */
template <int D> struct StayingKeys : WgmmaKeys<D> {
    static const int OTHER_K = (WgmmaKeys<D>::ALL + 1023) / 1024 * 1024;
    static const int KEYS_FULL = OTHER_K + 4 * WgmmaKeys<D>::BOX, KEYS_FREE = KEYS_FULL + 8 * 2;
    static const int SUM_FULL = KEYS_FREE + 8 * 2, SUM_FREE = SUM_FULL + 8 * 2; /* warpgroups */
    static const int TICKETS = SUM_FREE + 8 * 2, ALL = TICKETS + 4 * 2;
    static_assert(ALL <= 227 * 1024, "tiles do not fit");
};

/* Where K of a lap stands, with V behind it. */
template <class C> static __device__ __forceinline__ int place_of_K(int lap)
{
    return lap % 2 ? C::OTHER_K : C::K;
}

/* What a launch works on. */
struct Work {
    int *next_ticket; /* in the end above count: each block of threads draws one in vain */
    int count;        /* blocks of keys */
    int section;      /* kv heads of a section */
};

/* The block of keys of a ticket. here: heads of this section; the last one may have fewer. */
template <class C>
static __device__ __forceinline__ KeyBlock keys_of_ticket(const Problem &p, const Work &work,
                                                          int ticket)
{
    const int of_head = divide_up(p.Nk, C::Bc), heads = p.B * p.Hkv;
    const int first = ticket / (of_head * work.section) * work.section; /* head of the section */
    const int here = min(work.section, heads - first), rest = ticket - first * of_head;
    const int head = first + rest % here;
    return {head / p.Hkv, head % p.Hkv, rest / here * C::Bc, p.H / p.Hkv};
}

/* By all but the thread that draws: the ticket of a lap, once its keys are there. false: there are
 * no more. */
template <class C>
static __device__ __forceinline__ bool read_ticket(int &ticket, const Work &work,
                                                   const unsigned char *smem_bytes, int lap)
{
    const uint32_t smem = (uint32_t)__cvta_generic_to_shared(smem_bytes);
    barrier_wait(smem + C::KEYS_FULL + 8 * (lap % 2), lap / 2 % 2, WAIT_K);
    ticket = ((const int *)(smem_bytes + C::TICKETS))[lap % 2];
    return ticket < work.count;
}

/* --- loading -----------------------------------------------------------------------------------*/

/* By one thread: K and V of all laps, and dO of their tiles. A ticket lies beside its keys: it is
 * there when they are, and its place is free when theirs is. */
template <class C>
static __device__ __forceinline__ void produce_keys(const KeyMaps &maps, const Problem &p,
                                                    const Band &band, const Work &work,
                                                    unsigned char *smem_bytes)
{
    const uint32_t smem = (uint32_t)__cvta_generic_to_shared(smem_bytes);
    int tile = 0;
#pragma unroll 1
    for (int lap = 0;; lap++) {
        const uint32_t K = smem + place_of_K<C>(lap), full = smem + C::KEYS_FULL + 8 * (lap % 2);
        barrier_wait(smem + C::KEYS_FREE + 8 * (lap % 2), lap / 2 % 2 ^ 1, WAIT_FREE_K);
        const int ticket = atomicAdd(work.next_ticket, 1);
        ((int *)(smem_bytes + C::TICKETS))[lap % 2] = ticket;
        if (ticket >= work.count) {
            barrier_arrive(full);
            return;
        }
        const KeyBlock block = keys_of_ticket<C>(p, work, ticket);
        barrier_expect(full, 4 * C::BOX); /* also says that the ticket is there */
        for (int half = 0; half < 2; half++) {
            const int j = block.j0 + half * 64;
            load_tile(K + half * C::BOX, &maps.K, block.b, block.h_kv, j, full);
            load_tile(K + C::V - C::K + half * C::BOX, &maps.V, block.b, block.h_kv, j, full);
        }
        KeyWalk walk = start_walk<C>(block, rows_that_see(band, block.j0, C::Bc));
#pragma unroll 1
        for (const int end = tile + walk.count; tile < end; tile++) {
            const uint32_t barrier = smem + C::dO_FULL + 8 * (tile % 2);
            barrier_wait(smem + C::dO_FREE + 8 * (tile % 2), tile / 2 % 2 ^ 1, WAIT_FREE_dO);
            barrier_expect(barrier, C::ROWS_BYTES);
            load_tile(smem + C::dO + tile % 2 * C::ROWS_BYTES, &maps.dO, block.b, walk.h, walk.i0,
                      barrier);
            next_tile<C>(walk);
        }
    }
}

/* By another thread: Q of all tiles, with its stats. Where a tile of 128 has only 64 queries left,
 * their stats are loaded twice: queries past the end are hidden anyway. */
template <class C>
static __device__ __forceinline__ void produce_Q(const KeyMaps &maps, const Pass &pass,
                                                 const Problem &p, const Band &band,
                                                 const Work &work, const unsigned char *smem_bytes)
{
    const uint32_t smem = (uint32_t)__cvta_generic_to_shared(smem_bytes);
    int tile = 0, ticket;
#pragma unroll 1
    for (int lap = 0; read_ticket<C>(ticket, work, smem_bytes, lap); lap++) {
        const KeyBlock block = keys_of_ticket<C>(p, work, ticket);
        KeyWalk walk = start_walk<C>(block, rows_that_see(band, block.j0, C::Bc));
        barrier_arrive(smem + C::KEYS_FREE + 8 * (lap % 2));
#pragma unroll 1
        for (const int end = tile + walk.count; tile < end; tile++) {
            const uint32_t barrier = smem + C::Q_FULL + 8 * (tile % 2);
            const uint32_t to_stats = smem + C::STATS + tile % 2 * C::STATS_BYTES;
            barrier_wait(smem + C::Q_FREE + 8 * (tile % 2), tile / 2 % 2 ^ 1, WAIT_FREE_Q);
            barrier_expect(barrier, C::ROWS_BYTES + C::STATS_BYTES);
            load_tile(smem + C::Q + tile % 2 * C::ROWS_BYTES, &maps.Q, block.b, walk.h, walk.i0,
                      barrier);
            /* Rows fit 32 bits: a GPU has no room for more. And 24 registers are few. */
            const unsigned row = (block.b * p.H + walk.h) * padded_rows(p.Nq) + walk.i0;
            const float2 *stats = pass.stats + row;
            if (C::Br == 64 || walk.i0 + 64 < p.Nq) {
                load_bytes(to_stats, stats, C::STATS_BYTES, barrier);
            } else {
                load_bytes(to_stats, stats, 64 * 8, barrier);
                load_bytes(to_stats + 64 * 8, stats, 64 * 8, barrier);
            }
            next_tile<C>(walk);
        }
    }
}

/* --- storing -----------------------------------------------------------------------------------*/

/* 64 keys of dV or dK, times factor, to the box through which they leave. Before, a wait for the
 * sum before this one. For dK: dV has left the box. For dV: the sender has seen that dK of the lap
 * before is there; else SUM_FULL could end two phases, and to the sender that looks like none.
 * parity: a lap has two sums, dV first. The four warps do not meet here. That relies on a wgmma
 * being one operation of all four: V has been read when any of them has waited for it. */
template <typename T, class C>
static __device__ __forceinline__ void hand_over(const float (&sum)[C::D / 8][4], float factor,
                                                 unsigned char *box, uint32_t smem, int warpgroup,
                                                 int parity)
{
    barrier_wait(smem + C::SUM_FREE + 8 * warpgroup, parity, WAIT_FREE_V);
    round_keys<T, C>(sum, factor, box);
    fence_async();
    report(smem + C::SUM_FULL + 8 * warpgroup);
}

/* By one thread for each warpgroup: dV and dK of all laps to memory. */
template <class C>
static __device__ __forceinline__ void send_sums(const KeyMaps &maps, const Problem &p,
                                                 const Work &work, const unsigned char *smem_bytes,
                                                 int warpgroup)
{
    const uint32_t smem = (uint32_t)__cvta_generic_to_shared(smem_bytes);
    const uint32_t full = smem + C::SUM_FULL + 8 * warpgroup, free = full + 8 * 2;
#pragma unroll 1
    for (int lap = 0, ticket; read_ticket<C>(ticket, work, smem_bytes, lap); lap++) {
        const KeyBlock block = keys_of_ticket<C>(p, work, ticket);
        const uint32_t box = smem + place_of_K<C>(lap) + C::V - C::K + warpgroup * C::BOX;
        const int j = block.j0 + 64 * warpgroup;
        barrier_wait(full, 0, WAIT_V);
        if (j < p.Nk)
            store_tile(box, &maps.dV, block.b, block.h_kv, j);
        store_tiles_read();
        barrier_arrive(free);
        barrier_wait(full, 1, WAIT_V);
        barrier_arrive(free); /* seen; dV of the next lap goes to the other place */
        if (j < p.Nk)
            store_tile(box, &maps.dK, block.b, block.h_kv, j);
        store_tiles_read();
        barrier_arrive(smem + C::KEYS_FREE + 8 * (lap % 2));
    }
}

/* --- computing ---------------------------------------------------------------------------------*/

/* dK and dV of 64 keys over a walk; dQ is added. As consume_in_turns, but tiles have the numbers
 * start, start + 1, ..., K and V two places, and the end gives back what the next lap needs. */
template <typename T, class C>
static __device__ __forceinline__ void
consume_lap(float (&dK)[C::D / 8][4], float (&dV)[C::D / 8][4], const Pass &pass, const Band &band,
            const KeyBlock &block, int H, float scale, KeyWalk walk, unsigned char *smem_bytes,
            int warpgroup, int lap, int start)
{
    const uint32_t smem = (uint32_t)__cvta_generic_to_shared(smem_bytes);
    const uint32_t K = smem + place_of_K<C>(lap);
    const uint32_t my_K = K + warpgroup * C::BOX, my_V = my_K + C::V - C::K;
    const RowRange seeing = rows_that_see(band);
    const int Nq = band.Nq, last = start + walk.count - 1;
    /* dS_before: where dS of the tile before lies. The first tile of a lap has none before it:
     * that product reads K, and add_dQ drops it (dQ_before is NULL). Not V, as in v12: in a lap of
     * one tile the other warpgroup may have dV there already. At d = 64 multiply_dS_K moves
     * warpgroup 1 a panel on, so here it is moved a panel back. */
    uint32_t P_factor[C::Br / 16][4], dS_factor[C::Br / 16][4];
    uint32_t dS_before = K - (C::D == 64 ? warpgroup * C::dS_PANEL_BYTES : 0);
    float *dQ_before = NULL, *dQ_now; /* where dQ of the tile before is added, and of this one */
    start_sums<C>(dK, dV);
    wgmma_wait<0>(dK); /* nothing is in flight: it keeps the zeros in front of the products */
    wgmma_wait<0>(dV);
    if (warpgroup == 1 && last > start)
        threads_arrive(TURN, CONSUMER_THREADS);
    if (walk.count > 0) { /* S, dP, P and dS of the first tile */
        const int stage = start % 2, parity = start / 2 % 2;
        const uint32_t Q = smem + C::Q + stage * C::ROWS_BYTES, dO = Q + C::dO - C::Q;
        float S[C::Br / 8][4], dP[C::Br / 8][4];
        barrier_wait(smem + C::Q_FULL + 8 * stage, parity, WAIT_Q);
        barrier_wait(smem + C::dO_FULL + 8 * stage, parity, WAIT_dO);
        clear_unseen_rows<C>(smem_bytes + (Q - smem), seeing, walk.i0, Nq);
        clear_unseen_rows<C>(smem_bytes + (dO - smem), seeing, walk.i0, Nq);
        wgmma_begin();
        multiply_rows<T, C>(S, my_K, Q);
        multiply_rows<T, C>(dP, my_V, dO);
        wgmma_wait<1>(S);
        weigh_pairs<T, C>(P_factor, dS_factor, S, dP, scale, band, walk.i0, block.j0,
                          (const float2 *)(smem_bytes + C::STATS + stage * C::STATS_BYTES));
        /* dS of two tiles before lay here, mostly of the lap before: wait until both warpgroups
         * have read it. In the first two tiles of all the barrier is fresh: we pass. */
        barrier_wait(smem + C::dS_FREE + 8 * stage, parity ^ 1, WAIT_FREE_dS);
        store_dS<C>(smem + C::dS + stage * C::dS_BYTES, dS_factor, warpgroup);
    }
#pragma unroll 1
    for (int tile = start; tile < last; tile++) {
        const int stage = tile % 2, next = 1 - stage, next_parity = (tile + 1) / 2 % 2;
        const uint32_t Q = smem + C::Q + stage * C::ROWS_BYTES, dO = Q + C::dO - C::Q;
        const uint32_t next_Q = smem + C::Q + next * C::ROWS_BYTES, next_dO = next_Q + C::dO - C::Q;
        const uint32_t next_dS = smem + C::dS + next * C::dS_BYTES; /* dS of the tile before */
        const float2 *next_stats = (const float2 *)(smem_bytes + C::STATS + next * C::STATS_BYTES);
        float S[C::Br / 8][4], dP[C::Br / 8][4], dQ[8][4];
        dQ_now = dQ_slab<C>(pass.dQ_sum, block.b * H + walk.h, Nq, walk.i0, warpgroup);
        next_tile<C>(walk);
        /* dS of the tile before. It had the place of the next one, a round of the stages earlier:
         * hence next_parity ^ 1. In the first tile of a lap it has come long ago, or the barrier is
         * fresh. (An if in front of the wait, as in v12, made the library's kernel 3 % slower.) */
        barrier_wait(smem + C::dS_FULL + 8 * next, next_parity ^ 1, WAIT_dS);
        threads_sync(TURN + warpgroup, CONSUMER_THREADS);
        wgmma_begin();
        multiply_dS_K<T, C>(dQ, dS_before, K, warpgroup);
        dS_before = smem + C::dS + stage * C::dS_BYTES;
        add_product<T, C>(dV, P_factor, dO);
        add_product<T, C>(dK, dS_factor, Q);
        publish_dS<C>(smem, stage);
        wgmma_wait<2>(dQ);
        if (tile > 0)
            report(smem + C::dS_FREE + 8 * next);
        add_dQ(dQ_before, dQ);
        dQ_before = dQ_now;
        barrier_wait(smem + C::Q_FULL + 8 * next, next_parity, WAIT_Q);
        clear_unseen_rows<C>(smem_bytes + (next_Q - smem), seeing, walk.i0, Nq);
        wgmma_wait<1>(dV); /* P is read: room for S */
        wgmma_begin();
        multiply_rows<T, C>(S, my_K, next_Q);
        barrier_wait(smem + C::dO_FULL + 8 * next, next_parity, WAIT_dO);
        clear_unseen_rows<C>(smem_bytes + (next_dO - smem), seeing, walk.i0, Nq);
        wgmma_wait<1>(dK); /* dS is read: room for dP */
        wgmma_begin();
        multiply_rows<T, C>(dP, my_V, next_dO);
        if (warpgroup == 0 || tile + 1 < last) /* behind the last one nobody would take it */
            threads_arrive(TURN + (1 - warpgroup), CONSUMER_THREADS);
        report(smem + C::dO_FREE + 8 * stage);
        report(smem + C::Q_FREE + 8 * stage);
        wgmma_wait<1>(S);
        weigh_pairs<T, C>(P_factor, dS_factor, S, dP, scale, band, walk.i0, block.j0, next_stats);
        barrier_wait(smem + C::dS_FREE + 8 * next, next_parity ^ 1, WAIT_FREE_dS);
        store_dS<C>(next_dS, dS_factor, warpgroup);
    }
    if (walk.count > 0) { /* what is left: dQ of two tiles, dV and dK */
        const int stage = last % 2;
        const uint32_t dS = smem + C::dS + stage * C::dS_BYTES;
        float dQ[8][4];
        dQ_now = dQ_slab<C>(pass.dQ_sum, block.b * H + walk.h, Nq, walk.i0, warpgroup);
        /* The parity of last - 1, written so that last = 0 finds a fresh barrier. */
        barrier_wait(smem + C::dS_FULL + 8 * (1 - stage), (last + 1) / 2 % 2 ^ 1, WAIT_dS);
        wgmma_begin();
        multiply_dS_K<T, C>(dQ, dS_before, K, warpgroup);
        add_product<T, C>(dV, P_factor, smem + C::dO + stage * C::ROWS_BYTES);
        add_product<T, C>(dK, dS_factor, smem + C::Q + stage * C::ROWS_BYTES);
        publish_dS<C>(smem, stage);
        wgmma_wait<2>(dQ);
        if (last > 0)
            report(smem + C::dS_FREE + 8 * (1 - stage));
        add_dQ(dQ_before, dQ);
        wgmma_wait<1>(dV); /* dK is still being multiplied */
        hand_over<T, C>(dV, 1.0f, smem_bytes + (my_V - smem), smem, warpgroup, 1);
        barrier_wait(smem + C::dS_FULL + 8 * stage, last / 2 % 2, WAIT_dS);
        wgmma_begin();
        multiply_dS_K<T, C>(dQ, dS, K, warpgroup);
        wgmma_wait<0>(dQ);
        report(smem + C::dO_FREE + 8 * stage);
        report(smem + C::Q_FREE + 8 * stage);
        report(smem + C::KEYS_FREE + 8 * (lap % 2));
        add_dQ(dQ_now, dQ);
    } else {
        report(smem + C::KEYS_FREE + 8 * (lap % 2));
        hand_over<T, C>(dV, 1.0f, smem_bytes + (my_V - smem), smem, warpgroup, 1);
    }
    wgmma_wait<0>(dK);
    hand_over<T, C>(dK, scale, smem_bytes + (my_V - smem), smem, warpgroup, 0);
}

template <typename T, class C>
static __global__ void __launch_bounds__(128 + CONSUMER_THREADS, 1)
    persistent_kernel(const __grid_constant__ Problem p, const __grid_constant__ Pass pass,
                      const __grid_constant__ KeyMaps maps, const __grid_constant__ Work work)
{
    extern __shared__ __align__(1024) unsigned char smem_bytes[];
    const uint32_t smem = (uint32_t)__cvta_generic_to_shared(smem_bytes);
    const int warpgroup = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);
    const Band band = {p.from, p.to, p.Nq, p.Nk};
    if (threadIdx.x == 0) {
        for (int place = 0; place < 2; place++) {
            barrier_init(smem + C::KEYS_FULL + 8 * place, 1);
            /* each warp that computes, who loads Q, two who store: all read the ticket */
            barrier_init(smem + C::KEYS_FREE + 8 * place, CONSUMER_THREADS / 32 + 3);
            barrier_init(smem + C::SUM_FULL + 8 * place, CONSUMER_THREADS / 64);
            barrier_init(smem + C::SUM_FREE + 8 * place, 1);
        }
        start_barriers<C>(smem);
    }
    __syncthreads();
    if (warpgroup == PRODUCER) {
        registers_give<PRODUCER_REGISTERS>();
        const int warp = threadIdx.x % 128 / 32;
        if (threadIdx.x % 32 == 0) { /* of one warp they would hold each other up */
            if (warp == 0)
                produce_keys<C>(maps, p, band, work, smem_bytes);
            else if (warp == 1)
                produce_Q<C>(maps, pass, p, band, work, smem_bytes);
            else
                send_sums<C>(maps, p, work, smem_bytes, warp - 2);
        }
    } else {
        float dK[C::D / 8][4], dV[C::D / 8][4];
        registers_take<CONSUMER_REGISTERS>();
#pragma unroll 1
        for (int lap = 0, start = 0, ticket; read_ticket<C>(ticket, work, smem_bytes, lap); lap++) {
            const KeyBlock block = keys_of_ticket<C>(p, work, ticket);
            const KeyWalk walk = start_walk<C>(block, rows_that_see(band, block.j0, C::Bc));
            consume_lap<T, C>(dK, dV, pass, band, block, p.H, p.scale, walk, smem_bytes, warpgroup,
                              lap, start);
            start += walk.count;
        }
    }
}

static PassSizes sizes_of(const Problem *p)
{
    return {p->B, p->H, p->d, {p->from, p->to, p->Nq, p->Nk}};
}

/* What the rung asks for: that of a pass, and a ticket behind it. */
static int64_t work(const Problem *p, int)
{
    return pass_bytes(sizes_of(p), true) + sizeof(int);
}

template <typename T, int D> static void launch(const Problem *p)
{
    typedef StayingKeys<D> C;
    const PassSizes sizes = sizes_of(p);
    const unsigned all = key_blocks(p, C::Bc), blocks = min(all, (unsigned)count_multiprocessors());
    KeyMaps maps; /* those of Q and dO move a whole tile */
    if (!make_key_maps<T, D>(&maps, sizes, p->Hkv, p->Q, p->K, p->V, p->dO, p->dK, p->dV) ||
        !make_tile_map<T>(&maps.Q, p->Q, p->B, p->Nq, p->H, D, C::Br) ||
        !make_tile_map<T>(&maps.dO, p->dO, p->B, p->Nq, p->H, D, C::Br))
        return note_failure();
    if (!reserve_smem((const void *)persistent_kernel<T, C>, C::ALL))
        return;
    const Pass pass =
        start_pass(sizes, (const T *)p->O, (const T *)p->dO, p->lse, p->work, true, stream_of(p));
    const bool masked = p->to < 1 << 30 || p->from > -(1 << 30);
    const Work keys = {(int *)((char *)p->work + pass_bytes(sizes, true)), (int)all,
                       masked ? divide_up((int)blocks, divide_up(p->Nk, C::Bc)) : 1};
    cudaMemsetAsync(keys.next_ticket, 0, sizeof(int), stream_of(p));
    persistent_kernel<T, C>
        <<<blocks, 128 + CONSUMER_THREADS, C::ALL, stream_of(p)>>>(*p, pass, maps, keys);
    if (!launch_is_done(stream_of(p), "v15_persistent"))
        return note_failure();
    round_slabs<T, D>(sizes, p->scale, pass.dQ_sum, (T *)p->dQ, stream_of(p));
}

static void backward(const Problem *p)
{
    RUN_16_BIT(launch, p);
}

static Tiles tiles(const Problem *p)
{
    return {p->d == 64 ? 128 : 64, 128};
}

RUNG(flash_backward, v15_persistent, "blocks that stay: the next keys load while the last ones end",
     F16 | BF16, NULL, backward, work, tiles, SM90A | ATOMICS);
