/* SPDX-License-Identifier: MIT
 *
 * stream_play.h: plays of a few calls for two streams of a GPU's ranks.
 *
 * They keep the rules of ring_stream (the CPU's run would object otherwise: test_ring_two_streams),
 * and are played by the host code of stage 06's ranks on a GPU over a pretended one
 * (pretend_cuda/pretend_gpu.h). Two uses of the same memory that no stream and no event keep in
 * order are a failure.
 *
 * Interface:
 * - rooms, copy_in, zero_in: what scenes are made of. SCENE_OF: one of a function with a number.
 * - PLAYS(name, tokens, told, scenes...): a test of scenes, over two ranks of `tokens` each.
 */
#ifndef LANE_PLAY_H
#define LANE_PLAY_H

#include "pretend_cuda/pretend_gpu.h"
#include "ring_sim_case.h"
#include "runtime/cuda/backend_cuda.h"

enum { PIECE = 64, SEEDS = 4, HEADS = 4 }; /* PIECE: bytes */

static inline const Rooms *rooms(const RingRank *r)
{
    return r->method;
}

static inline int copy_in(RingRank *r, int stream, void *to, const void *from)
{
    ring_stream(r, stream);
    return ring_copy(r, to, PIECE, from, PIECE, PIECE, 1);
}

static inline int zero_in(RingRank *r, int stream, void *p)
{
    ring_stream(r, stream);
    return ring_zero(r, p, PIECE);
}

static int (*scene)(RingRank *r);

static inline int play_forward(RingRank *r)
{
    const int status = scene(r);
    ring_stream(r, RING_BOTH_STREAMS);
    return status;
}

/* A plan with a backward pass, for its workspace. What it makes of the scene nobody looks at. */
static inline int play_backward(RingRank *r)
{
    ring_backward_local(r);
    return ring_status(r);
}

/* Over two ranks of `tokens` each. told: words of the problem that there has to be, or NULL. */
static inline void play_with(int (*wanted)(RingRank *r), int tokens, const char *told)
{
    const RingMethodTable table = {rooms_open, play_forward, play_backward, NULL};
    const AttnShape shape = {1, HEADS, HEADS, 2 * tokens, 2 * tokens, 8};
    scene = wanted;
    for (int seed = 0; seed < SEEDS; seed++) {
        RingSetup setup = sim_setup(2, RING_CONTIGUOUS);
        setup.adversarial = 1;
        setup.schedule_seed = (uint64_t)seed;
        SimCase *c = sim_case(case_new(shape, ATTN_BF16, LAYOUT_BSHD, 1), &setup, &table);
        char words[256];
        pretend_gpu_begin((uint64_t)seed);
        const int status = ring_world_sim(&c->task, &ring_backend_cuda, &c->report);
        const int problems = pretend_gpu_end(words);
        if (status || (problems && !told))
            fail_msg("%s", problems ? words : c->report.failure);
        if (told && (!problems || !strstr(words, told)))
            fail_msg("a problem with %s was expected, not: %s", told, problems ? words : "none");
        sim_case_free(c);
        assert_int_equal(0, workspace_live());
    }
}

#define SCENE_OF(name, function, number)                                                           \
    static int name(RingRank *r)                                                                   \
    {                                                                                              \
        return function(r, number);                                                                \
    }

#define PLAYS(name, tokens, told, ...)                                                             \
    TEST(name)                                                                                     \
    {                                                                                              \
        int (*const scenes[])(RingRank * r) = {__VA_ARGS__};                                       \
        for (size_t n = 0; n < sizeof scenes / sizeof *scenes; n++)                                \
            play_with(scenes[n], tokens, told);                                                    \
    }

#endif
