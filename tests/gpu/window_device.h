/* SPDX-License-Identifier: MIT
 *
 * window_device.h: window_run.h for the online module on the device.
 *
 * Interface:
 * - DeviceRun, device_run_new, device_run_free: a module whose blocks, weights, mask and state are
 *   device pointers, beside the host's.
 * - state_down, device_step. traverse_on_device: a Traversal.
 */
#ifndef WINDOW_DEVICE_H
#define WINDOW_DEVICE_H

#include "../unit/window_run.h"

#include "harness/device/device.h"

/* A module of its own on the device, and copies of everything that the host's Run has. */
typedef struct DeviceRun {
    Run *host;
    SlidingWindowOnline *w;
    size_t q_bytes, kv_bytes;
    unsigned char *O_dev, *q_dev, *k_dev, *v_dev, *mask_dev;
    float *lse_dev, *wq_dev, *wk_dev;
} DeviceRun;

static inline void *copy_up(const void *from, size_t bytes)
{
    void *to_dev = device_alloc(bytes);
    assert_non_null(to_dev);
    assert_int_equal(0, device_upload(to_dev, from, bytes));
    return to_dev;
}

static inline void state_down(DeviceRun *r)
{
    Case *c = r->host->c;
    assert_int_equal(0, device_synchronize());
    assert_int_equal(0, device_download(c->O.base, r->O_dev, c->O.bytes));
    assert_int_equal(0, device_download(c->lse, r->lse_dev, rows_bytes(r->host)));
}

/* With the state that the host has. */
static inline DeviceRun device_run_new(Run *host)
{
    DeviceRun r = {.host = host};
    const AttnArgs *a = &host->c->args;
    const AttnShape *n = &a->shape;
    const AttnOptions *o = &host->config->options;
    WindowOnlineConfig config = {*host->config, n->B, n->Nq, n->Nk, host->bq,
                                 host->bkv,     NULL, 1,     NULL};
    char error[WINDOW_ERROR] = "";
    r.q_bytes = block_bytes(&a->Q, host->bq);
    r.kv_bytes = block_bytes(&a->K, host->bkv);
    r.O_dev = copy_up(host->c->O.base, host->c->O.bytes);
    r.lse_dev = copy_up(host->c->lse, rows_bytes(host));
    r.q_dev = copy_up(host->q, r.q_bytes);
    r.k_dev = copy_up(host->k, r.kv_bytes);
    r.v_dev = copy_up(host->v, r.kv_bytes);
    r.mask_dev = a->mask ? copy_up(a->mask, (size_t)(n->Nq * n->Nk)) : NULL;
    r.wq_dev = copy_up(o->wq, (size_t)(n->H * n->d) * sizeof(float));
    r.wk_dev = copy_up(o->wk, (size_t)(n->Hkv * n->d) * sizeof(float));
    config.mask = r.mask_dev;
    config.base.options.wq = r.wq_dev;
    config.base.options.wk = r.wk_dev;
    assert_int_equal(WINDOW_OK, sliding_window_online_create(&r.w, &config, error));
    return r;
}

static inline void device_run_free(DeviceRun *r)
{
    void *all[] = {r->O_dev, r->lse_dev,  r->q_dev,  r->k_dev,
                   r->v_dev, r->mask_dev, r->wq_dev, r->wk_dev};
    for (size_t n = 0; n < sizeof all / sizeof *all; n++)
        device_free(all[n]);
    sliding_window_online_destroy(r->w);
}

static inline void device_step(DeviceRun *r, int64_t i, int64_t j)
{
    Run *h = r->host;
    unsigned char *O = r->O_dev + ((unsigned char *)h->c->O.view.data - h->c->O.base);
    char error[WINDOW_ERROR] = "";
    cut_blocks(h, i, j);
    assert_int_equal(0, device_upload(r->q_dev, h->q, r->q_bytes));
    assert_int_equal(0, device_upload(r->k_dev, h->k, r->kv_bytes));
    assert_int_equal(0, device_upload(r->v_dev, h->v, r->kv_bytes));
    assert_int_equal(WINDOW_OK, sliding_window_online_step(r->w, r->q_dev, r->k_dev, r->v_dev, O,
                                                           r->lse_dev, i, j, error));
    assert_int_equal(0, device_synchronize()); /* the blocks are overwritten next */
}

/* From the host's state to the host's state. */
static inline void traverse_on_device(Run *host)
{
    int64_t *visits = malloc((size_t)(host->Tr * host->Tc) * sizeof *visits);
    DeviceRun r = device_run_new(host);
    assert_non_null(visits);
    visits_fill(host->Tr, host->Tc, visits);
    for (int64_t t = 0; t < host->Tr * host->Tc; t++)
        device_step(&r, visits[t] / host->Tc, visits[t] % host->Tc);
    state_down(&r);
    device_run_free(&r);
    free(visits);
}

#endif
