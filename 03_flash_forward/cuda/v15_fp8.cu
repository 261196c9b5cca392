/* SPDX-License-Identifier: MIT
 *
 * v15_fp8: v14 on bytes: Q, K, V and P in e4m3, and a second level of sums.
 *
 * wgmma multiplies bytes twice as fast as 16 bits, and a tile of bytes is half as large. e4m3 has a
 * sign, 4 bits of exponent and 3 of fraction: 448 is its largest number, 2^-9 its smallest. What
 * that asks for:
 *
 *   - Scales. Each head and block of 512 tokens of Q, K and V has a power of two that brings it
 *     into e4m3's range. That of Q and K goes into the multiply-add in front of exp2; that of V
 *     goes onto O.
 *   - V transposed. wgmma reads bytes only along the sum, and the sum of P V runs over keys. So a
 *     kernel before turns V into tiles [channel][key].
 *   - P from registers. A lane holds columns 8 n + 2 t, 8 n + 2 t + 1 of S, but of A four in a
 *     row. In which order the sum meets the keys is free: the lane packs what it has, and V^T has
 *     its keys in the same order (key_of_place).
 *   - P lies between 0 and 2^8. m is 4 powers of two below the largest score, and v12's lazy
 *     maximum lets a score be 8 above m. A byte then still tells P of 2^-13 of the largest from 0.
 *   - Two levels. wgmma aligns what it adds to the largest number and keeps some 14 bits of it: in
 *     a long sum the small ones lose theirs, always towards zero. So a sum goes over 512 keys only,
 *     and ordinary float32 additions gather the sums, with V's scale: one multiply-add.
 *
 * SECOND_LEVEL 0 is the form without: faster, and wrong for long rows (docs, page 03.10).
 *
 * Prediction (H200): products and exponentials of a tile of 128 x 128 take 1,024 clocks each, and
 * v14 hides one behind the other as far as it does for 16 bits: 950 TFLOP/s with one level. The
 * flush of a block of 512 keys takes 128 clocks, and nothing hides it: 830 with two.
 *
 * Interface:
 * - RUNG at the end: e4m3, d = 128, on sm_90.
 */
#include "problem.cuh"
#include "units/wgmma_rows.cuh"

#ifndef SECOND_LEVEL
#define SECOND_LEVEL 1
#endif

#define D     128
#define BELOW 4.0f /* m is so many powers of two below the largest score */

/* 128 keys a tile, two warpgroups of 64 rows: S 64, O 64, second level 64, P 16 registers. */
typedef WgmmaTile<D, 128, 2, 5, true, 1> C;
static_assert(C::Bc == D && E4M3_BLOCK % C::Bc == 0 && E4M3_BLOCK % C::Br == 0, "tiles and blocks");

/* --- bytes -------------------------------------------------------------------------------------*/

/* cvt.rn.satfinite.e4m3x2.f32, twice: four numbers to a register, x0 in the lowest byte. */
static __device__ __forceinline__ uint32_t pack4(float x0, float x1, float x2, float x3)
{
    uint32_t all;
    asm("{\n.reg .b16 low, high;\n"
        "cvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n"
        "cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n"
        "mov.b32 %0, {low, high};\n}\n"
        : "=r"(all)
        : "f"(x0), "f"(x1), "f"(x2), "f"(x3));
    return all;
}

/* wgmma.mma_async m64n128k32: S = or += Q K^T, both [rows][32 bytes] in shared memory. */
static __device__ __forceinline__ void multiply_smem_fp8(float (&S)[16][4], uint64_t Q, uint64_t K,
                                                         int add)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {" NAMES_128
                 "}, %64, %65, p, 1, 1;\n}\n"
                 : COLUMNS_64(S, 0), COLUMNS_64(S, 8)
                 : "l"(Q), "l"(K), "r"(add));
}

/* The same with A in registers: O = or += P V^T^T. */
static __device__ __forceinline__ void
multiply_registers_fp8(float (&O)[16][4], const uint32_t (&P)[4], uint64_t V, int add)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {" NAMES_128
                 "}, {%64,%65,%66,%67}, %68, p, 1, 1;\n}\n"
                 : COLUMNS_64(O, 0), COLUMNS_64(O, 8)
                 : "r"(P[0]), "r"(P[1]), "r"(P[2]), "r"(P[3]), "l"(V), "r"(add));
}

/* Issues S = Q K_j^T as a group: 32 channels a step, and all 128 are one panel. */
static __device__ __forceinline__ void multiply_QK_fp8(float (&S)[16][4], uint32_t Q_smem,
                                                       uint32_t K_smem)
{
    const uint64_t Q = tile_descriptor(Q_smem, C::Q_PANEL), K = tile_descriptor(K_smem, C::K_PANEL);
#pragma unroll
    for (int k = 0; k < 4; k++)
        multiply_smem_fp8(S, Q + row_tile_step(k, 0), K + row_tile_step(k, 0), k > 0);
    wgmma_commit();
}

/* Issues part = or += P V_j as a group. V_smem: [channel][key] */
static __device__ __forceinline__ void
multiply_PV_fp8(float (&part)[16][4], const uint32_t (&P)[4][4], uint32_t V_smem, int add)
{
    const uint64_t V = tile_descriptor(V_smem, C::K_PANEL);
#pragma unroll
    for (int k = 0; k < 4; k++)
        multiply_registers_fp8(part, P[k], V + row_tile_step(k, 0), k > 0 ? 1 : add);
    wgmma_commit();
}

/* P as A of the next product. Of 16 keys a lane has 2 t, 2 t + 1, 8 + 2 t, 8 + 2 t + 1: places 4 t
 * ... 4 t + 3 of the sum. */
static __device__ __forceinline__ void round_P_fp8(uint32_t (&P)[4][4], const float (&S)[16][4])
{
#pragma unroll
    for (int k = 0; k < 4; k++)
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int n = 4 * k + 2 * half;
                P[k][2 * half + e] =
                    pack4(S[n][2 * e], S[n][2 * e + 1], S[n + 1][2 * e], S[n + 1][2 * e + 1]);
            }
}

/* The key of a tile at a place of the sum: 16 a + 8 h + 2 t + x at 16 a + 4 t + 2 h + x. */
static __device__ __forceinline__ int key_of_place(int place)
{
    return place / 16 * 16 + place / 2 % 2 * 8 + place / 4 % 4 * 2 + place % 2;
}

/* V [B][Nk][Hkv][128] becomes Vt [B][Hkv][tile][channel][place]. A block turns one tile, through
 * shared memory; keys past the last are 0. */
static __global__ void __launch_bounds__(256)
    transpose_kernel(const __grid_constant__ Problem p, uint32_t *Vt)
{
    __shared__ uint32_t tile[C::Bc][D / 4 + 1]; /* [key][4 channels], a column more: no conflicts */
    const int tiles = (p.Nk + C::Bc - 1) / C::Bc, head = blockIdx.x / tiles;
    const int first = blockIdx.x % tiles * C::Bc;
    for (int at = threadIdx.x; at < C::Bc * D / 4; at += 256) {
        const int key = first + at / (D / 4);
        const int64_t row = key_row(&p, head / p.Hkv, head % p.Hkv, min(key, p.Nk - 1));
        const uint32_t four = ((const uint32_t *)p.V)[row / 4 + at % (D / 4)];
        tile[at / (D / 4)][at % (D / 4)] = key < p.Nk ? four : 0;
    }
    __syncthreads();
    Vt += (int64_t)blockIdx.x * (C::Bc * D / 4);
    for (int at = threadIdx.x; at < C::Bc * D / 16; at += 256) { /* 4 channels of 4 places */
        const int column = at / (C::Bc / 4), place = at % (C::Bc / 4);
        uint32_t four[4];
#pragma unroll
        for (int e = 0; e < 4; e++)
            four[e] = tile[key_of_place(4 * place + e)][column];
#pragma unroll
        for (int x = 0; x < 4; x++) {
            uint32_t keys = 0;
#pragma unroll
            for (int e = 0; e < 4; e++)
                keys |= (four[e] >> 8 * x & 255) << 8 * e;
            Vt[(4 * column + x) * (C::Bc / 4) + place] = keys;
        }
    }
}

/* --- 64 rows of a warpgroup --------------------------------------------------------------------*/

/* Online softmax as in v12, with m below the largest score: P is up to 2^BELOW when m is fresh. */
template <bool MASKED>
static __device__ __forceinline__ bool update_rows_below(float (&S)[16][4], WarpgroupRows<C> &rows,
                                                         float (&alpha)[2], float scale_log2)
{
    const float top[2] = {largest<C>(S, 0) * scale_log2, largest<C>(S, 1) * scale_log2};
    const bool grown =
        __any_sync(0xffffffffu, top[0] > rows.m[0] + LAZY || top[1] > rows.m[1] + LAZY);
    if (grown) {
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const float m_new = fmaxf(rows.m[e], largest_of_row(top[e]) - BELOW);
            alpha[e] = m_new == -INFINITY ? 1.0f : exp2_sfu(rows.m[e] - m_new);
            rows.m[e] = m_new;
            rows.l[e] *= alpha[e];
        }
    }
#pragma unroll
    for (int e = 0; e < 2; e++)
        rows.l[e] += exponentiate<C, MASKED>(S, e, rows.m[e], scale_log2);
    return grown;
}

/* O += scale part, in float32: what the tensor cores have summed over a block of keys. */
static __device__ __forceinline__ void flush(WarpgroupRows<C> &rows, const float (&part)[16][4],
                                             float scale)
{
#pragma unroll
    for (int n = 0; n < D / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            rows.O[n][e] = fmaf(part[n][e], scale, rows.O[n][e]);
}

static __device__ __forceinline__ void rescale(float (&part)[16][4], float a0, float a1)
{
#pragma unroll
    for (int n = 0; n < D / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            part[n][e] *= e / 2 ? a1 : a0;
}

/* v14's loop. `add` says whether a block of 512 keys goes on: then the product adds to part.
 * K_scale, V_scale [blocks]: of this head. */
static __device__ __forceinline__ void consume(WarpgroupRows<C> &rows, const Problem &p,
                                               const KeyTiles &tiles, const KeyTiles &full,
                                               uint32_t smem, uint32_t my_Q, int i, RingPlace &now,
                                               int Q_parity, float scale_log2, const float *K_scale,
                                               const float *V_scale)
{
    const int PER_BLOCK = E4M3_BLOCK / C::Bc;
    float S[16][4], part[16][4], alpha[2];
    uint32_t P[4][4];
    now.stage = (int)__reduce_max_sync(0xffffffffu, now.stage);
    now.parity = (int)__reduce_max_sync(0xffffffffu, now.parity);
    int j = tiles.end - 1, add = 0;
    start_rows(rows);
    barrier_wait(smem + C::Q_FULL, Q_parity, WAIT_Q);
    if (j < tiles.begin) {
        __syncwarp(); /* who has not yet seen this Q would wait for a phase that is gone */
        release(smem + C::Q_FREE);
        return;
    }
    barrier_wait(smem + C::K_FULL + 8 * now.stage, now.parity, WAIT_K);
    wgmma_begin();
    multiply_QK_fp8(S, my_Q, smem + C::K + now.stage * C::K_BYTES);
    wgmma_wait<0>(S);
    release(smem + C::K_FREE + 8 * now.stage);
    if (j < full.begin || j >= full.end)
        hide_keys<C>(S, p.from, p.to, p.Nk, i, j);
    update_rows_below<true>(S, rows, alpha, scale_log2 * K_scale[j / PER_BLOCK]);
    round_P_fp8(P, S);
#pragma unroll 1
    for (j--; j >= tiles.begin; j--) {
        RingPlace next = now;
        /* read here, long before they are used */
        const float scale = scale_log2 * K_scale[j / PER_BLOCK];
        const float scale_V = V_scale[(j + 1) / PER_BLOCK];
        advance<C>(next);
        barrier_wait(smem + C::K_FULL + 8 * next.stage, next.parity, WAIT_K);
        wgmma_begin();
        multiply_QK_fp8(S, my_Q, smem + C::K + next.stage * C::K_BYTES);
        barrier_wait(smem + C::V_FULL + 8 * now.stage, now.parity, WAIT_V);
        wgmma_begin();
        multiply_PV_fp8(part, P, smem + C::V + now.stage * C::K_BYTES, add);
        wgmma_wait<1>(S); /* S is there, O may take its time */
        release(smem + C::K_FREE + 8 * next.stage);
        bool grown;
        if (full.begin <= j && j < full.end) {
            grown = update_rows_below<false>(S, rows, alpha, scale);
        } else {
            hide_keys<C>(S, p.from, p.to, p.Nk, i, j);
            grown = update_rows_below<true>(S, rows, alpha, scale);
        }
        wgmma_wait<0>(part); /* only now may P and O be touched */
        release(smem + C::V_FREE + 8 * now.stage);
        round_P_fp8(P, S);
        add = 1;
        if ((j + 1) % PER_BLOCK == 0) { /* tile j + 1 was the last of its block */
            if (SECOND_LEVEL) {
                flush(rows, part, scale_V);
                add = 0;
            } else {
                const float ratio = scale_V / V_scale[j / PER_BLOCK];
                rescale(part, ratio, ratio);
            }
        }
        if (grown) {
            rescale(part, alpha[0], alpha[1]);
            rescale(rows.O, alpha[0], alpha[1]);
        }
        now = next;
    }
    release(smem + C::Q_FREE); /* the next Q may come */
    barrier_wait(smem + C::V_FULL + 8 * now.stage, now.parity, WAIT_V);
    wgmma_begin();
    multiply_PV_fp8(part, P, smem + C::V + now.stage * C::K_BYTES, add);
    wgmma_wait<0>(part);
    release(smem + C::V_FREE + 8 * now.stage);
    advance<C>(now);
    flush(rows, part, V_scale[tiles.begin / PER_BLOCK]);
}

/* Row tile number `turn` of this block, or false: it has done its share. Blocks take the tiles in
 * order, from left to right and then from right to left: who had the longest in one turn has the
 * shortest in the next. Within a section of heads the longest tiles of all heads come first. */
template <class C>
static __device__ __forceinline__ bool tile_of_turn(BlockWork &work, const Problem &p, int section,
                                                    int turn)
{
    const int tiles = (p.Nq + C::Br - 1) / C::Br, heads = p.B * p.H;
    const int place = turn & 1 ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
    const int index = turn * gridDim.x + place;
    if (index >= tiles * heads)
        return false; /* behind the last head `here` would be 0 */
    const int first = index / (tiles * section) * section; /* head of the section */
    const int here = min(section, heads - first), rest = index - first * tiles;
    work = work_of_head(p, first + rest % here, (tiles - 1 - rest / here) * C::Br);
    return true;
}

static __global__ void __launch_bounds__(128 * (1 + C::CONSUMERS), 1)
    fp8_kernel(const __grid_constant__ Problem p, const __grid_constant__ TileMaps maps,
               int section)
{
    extern __shared__ __align__(1024) unsigned char smem_bytes[];
    const uint32_t smem = (uint32_t)__cvta_generic_to_shared(smem_bytes);
    const int warpgroup = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);
    RingPlace place = {0, 0};
    BlockWork work;
    if (threadIdx.x == 0)
        start_barriers<C>(smem);
    __syncthreads();
    if (warpgroup == 0) {
        registers_give<C::PRODUCER_REGISTERS>();
        if (threadIdx.x == 0) {
            for (int turn = 0; tile_of_turn<C>(work, p, section, turn); turn++) {
                const KeyTiles tiles = key_tiles<C::Br, C::Bc>(p, work.i0);
                produce_keys<C>(maps, work.b, work.h_kv, tiles.begin, tiles.end, smem, place);
            }
        } else if (threadIdx.x == 32) {
            for (int turn = 0; tile_of_turn<C>(work, p, section, turn); turn++) {
                barrier_wait(smem + C::Q_FREE, (turn & 1) ^ 1, WAIT_FREE_Q);
                produce_Q<C>(maps, work.b, work.h, work.i0, smem);
            }
        }
    } else {
        registers_take<C::CONSUMER_REGISTERS>();
        const int r = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4; /* this lane's row */
        const int Q_blocks = (p.Nq + E4M3_BLOCK - 1) / E4M3_BLOCK;
        const int K_blocks = (p.Nk + E4M3_BLOCK - 1) / E4M3_BLOCK;
#pragma unroll 1
        for (int turn = 0; tile_of_turn<C>(work, p, section, turn); turn++) {
            const int i0 = work.i0 + 64 * (warpgroup - 1);
            const KeyTiles tiles = key_tiles<C::Br, C::Bc>(p, work.i0);
            const int of_keys = (work.b * p.Hkv + work.h_kv) * K_blocks;
            const float Q_scale =
                p.scales[0][(work.b * p.H + work.h) * Q_blocks + work.i0 / E4M3_BLOCK];
            WarpgroupRows<C> rows;
            consume(rows, p, tiles, full_tiles<C::Br, C::Bc>(p, work.i0, tiles), smem,
                    smem + (warpgroup - 1) * C::Q_BYTES, i0 + r, place, turn & 1,
                    p.scale * (float)M_LOG2E * Q_scale, p.scales[1] + of_keys,
                    p.scales[2] + of_keys);
            store_rows<__nv_bfloat16, C>(rows, &maps.O, p.lse + lse_row(&p, work.b, work.h, 0),
                                         work.b, work.h, i0, p.Nq,
                                         smem + C::O + (warpgroup - 1) * C::O_BYTES, warpgroup);
        }
        store_tiles_read();
    }
}

/* The map of X [B][N][heads][128 bytes], or of Vt, where a head's rows lie together: bytes from a
 * row, head and batch to the next. A tile has `rows` rows. */
static bool make_byte_map(CUtensorMap *map, const void *X, int B, int64_t N, int heads, int64_t row,
                          int64_t head, int64_t batch, int rows)
{
    const cuuint64_t sizes[5] = {D, (cuuint64_t)N, 1, (cuuint64_t)heads, (cuuint64_t)B};
    const cuuint64_t bytes[4] = {(cuuint64_t)row, D, (cuuint64_t)head, (cuuint64_t)batch};
    const cuuint32_t box[5] = {D, (cuuint32_t)rows, 1, 1, 1};
    return encode_map(map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 5, X, sizes, bytes, box);
}

static int64_t tile_rows(const Problem *p) /* of V^T of a head: tiles of 128 channels */
{
    return ((int64_t)p->Nk + C::Bc - 1) / C::Bc * D;
}

static int64_t work(const Problem *p, int)
{
    return p->B * p->Hkv * tile_rows(p) * C::Bc;
}

static void forward(const Problem *p)
{
    TileMaps maps;
    const unsigned blocks = min(row_blocks(p, C::Br), (unsigned)count_multiprocessors());
    const bool causal = p->to < 1 << 30 && p->from == -(1 << 30);
    const int section = causal ? p->B * p->H : 1;
    const int64_t q_row = (int64_t)p->H * D, k_row = (int64_t)p->Hkv * D, head = tile_rows(p) * D;
    if (!make_byte_map(&maps.Q, p->Q, p->B, p->Nq, p->H, q_row, D, p->Nq * q_row, 64) ||
        !make_byte_map(&maps.K, p->K, p->B, p->Nk, p->Hkv, k_row, D, p->Nk * k_row, C::Bc) ||
        !make_byte_map(&maps.V, p->work, p->B, tile_rows(p), p->Hkv, D, head, p->Hkv * head, D) ||
        !make_tile_map<__nv_bfloat16>(&maps.O, p->O, p->B, p->Nq, p->H, D, 64) ||
        !launch_is_done(0, NULL))
        return note_failure();
    transpose_kernel<<<key_blocks(p, C::Bc), 256, 0, stream_of(p)>>>(*p, (uint32_t *)p->work);
    if (blocks > 0 && reserve_smem((const void *)fp8_kernel, C::ALL))
        fp8_kernel<<<blocks, 128 * (1 + C::CONSUMERS), C::ALL, stream_of(p)>>>(*p, maps, section);
    if (!launch_is_done(stream_of(p), "v15_fp8"))
        note_failure();
}

static Tiles tiles(const Problem *)
{
    return {C::Br, C::Bc};
}

RUNG(flash_forward, v15_fp8, "bytes: scales a block, V transposed, sums in two levels", E4M3,
     forward, NULL, work, tiles, SM90A);
