/* SPDX-License-Identifier: MIT
 *
 * window_device.h: window_run.h for the online module on the device.
 *
 * Interface:
 * - DeviceRun, device_run_new, device_run_free: a module whose blocks, weights, mask and state are
 *   device pointers, beside the host's.
 * - state_up, state_down, device_step, device_traverse.
 */
#ifndef WINDOW_DEVICE_H
#define WINDOW_DEVICE_H

#include "../unit/window_run.h"

#include "harness/device/device.h"

/* The host's Run, with a module of its own on the device and copies of everything. */
typedef struct DeviceRun {
    Run host;
    SlidingWindowOnline *w;
    size_t O_bytes, lse_bytes, q_bytes, kv_bytes;
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

static inline void state_up(DeviceRun *r)
{
    assert_int_equal(0, device_upload(r->O_dev, r->host.O.base, r->O_bytes));
    assert_int_equal(0, device_upload(r->lse_dev, r->host.lse, r->lse_bytes));
}

static inline void state_down(DeviceRun *r)
{
    assert_int_equal(0, device_synchronize());
    assert_int_equal(0, device_download(r->host.O.base, r->O_dev, r->O_bytes));
    assert_int_equal(0, device_download(r->host.lse, r->lse_dev, r->lse_bytes));
}

static inline DeviceRun device_run_new(Plain *p, int64_t bq, int64_t bkv)
{
    DeviceRun r = {.host = run_new(p, bq, bkv)};
    const WindowConfig *c = &p->c;
    const size_t d = (size_t)c->head_dim, element = dtype_size(c->dtype);
    const size_t Q_weights = (size_t)c->heads_q * d, K_weights = (size_t)c->heads_kv * d;
    WindowOnlineConfig config = {*c, p->B, p->sq, p->skv, bq, bkv, NULL, 1, NULL};
    char error[WINDOW_ERROR] = "";
    r.O_bytes = r.host.O.bytes;
    r.lse_bytes = (size_t)(p->B * c->heads_q * p->sq) * sizeof(float);
    r.q_bytes = (size_t)(p->B * bq * c->heads_q) * d * element;
    r.kv_bytes = (size_t)(p->B * bkv * c->heads_kv) * d * element;
    r.O_dev = copy_up(r.host.O.base, r.O_bytes);
    r.lse_dev = copy_up(r.host.lse, r.lse_bytes);
    r.q_dev = copy_up(r.host.q, r.q_bytes);
    r.k_dev = copy_up(r.host.k, r.kv_bytes);
    r.v_dev = copy_up(r.host.v, r.kv_bytes);
    r.mask_dev = p->mask ? copy_up(p->mask, (size_t)(p->sq * p->skv)) : NULL;
    r.wq_dev = copy_up(p->wq, Q_weights * sizeof(float));
    r.wk_dev = copy_up(p->wk, K_weights * sizeof(float));
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
    run_free(&r->host);
}

static inline void device_step(DeviceRun *r, int64_t i, int64_t j)
{
    Run *h = &r->host;
    unsigned char *O = r->O_dev + ((unsigned char *)h->O.view.data - h->O.base);
    char error[WINDOW_ERROR] = "";
    cut(&h->p->Q, i, h->bq, h->q);
    cut(&h->p->K, j, h->bkv, h->k);
    cut(&h->p->V, j, h->bkv, h->v);
    assert_int_equal(0, device_upload(r->q_dev, h->q, r->q_bytes));
    assert_int_equal(0, device_upload(r->k_dev, h->k, r->kv_bytes));
    assert_int_equal(0, device_upload(r->v_dev, h->v, r->kv_bytes));
    assert_int_equal(WINDOW_OK, sliding_window_online_step(r->w, r->q_dev, r->k_dev, r->v_dev, O,
                                                           r->lse_dev, i, j, error));
    assert_int_equal(0, device_synchronize()); /* the blocks are overwritten next */
}

/* From the host's state to the host's state. */
static inline void device_traverse(DeviceRun *r)
{
    Run *h = &r->host;
    int64_t *visits = plain_zeros(h->Tr * h->Tc, sizeof *visits);
    state_up(r);
    visits_fill(h->Tr, h->Tc, visits);
    for (int64_t t = 0; t < h->Tr * h->Tc; t++)
        device_step(r, visits[t] / h->Tc, visits[t] % h->Tc);
    state_down(r);
    free(visits);
}

#endif
