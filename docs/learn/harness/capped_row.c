/* SPDX-License-Identifier: MIT
 *
 * capped_row.c: judges the weights of a row with a cap, a temperature and a mask.
 *
 * Interface: -N keys, --cap, --temperature: whole numbers, --masked: every third key is hidden,
 * --empty: all are.
 */
#include <math.h>

#include "learn.h"

void weights_of_row(const float *qk, const unsigned char *hidden, float *P, int n, float scale,
                    float cap, float temperature);

const Mistake mistakes[] = {
    {"softcap_after_mask",
     "The cap comes after the mask: tanh makes -cap of the -inf of a hidden key, and it has a "
     "weight again."},
    {"temperature_beside_cap",
     "The scores are divided by the temperature although a cap is given."},
    {"softcap_not_scaled", "The score is tanh(s / cap): the cap in front of it is missing."},
    {"temperature_ignored", "The scores are not divided by the temperature."},
    {NULL, NULL}};

static const float scale = 0.5f;
static float *qk;
static unsigned char *hidden;
static Output *P;
static long n;
static float cap, temperature;

void prepare(void)
{
    n = number("-N", 4);
    cap = (float)number("--cap", 0);
    temperature = (float)number("--temperature", 1);
    qk = input("qk", n);
    hidden = calloc((size_t)n, 1);
    P = output("P", n, 1, "key", "");
    if (!hidden)
        refuse("memory", "There is no memory for this case.");
    fill_normal(qk, n, 1);
    for (long j = 0; j < n; j++) {
        qk[j] *= 6.0f;
        hidden[j] = has_flag("--empty") || (has_flag("--masked") && j % 3 == 1);
    }
}

void call(void)
{
    weights_of_row(qk, hidden, P->found, (int)n, scale, cap, temperature);
}

void expect(int mistake)
{
    double sum = 0;
    for (long j = 0; j < n; j++) {
        double s = (double)scale * qk[j];
        if (mistake == 1 && hidden[j])
            s = -INFINITY;
        if ((cap == 0 || mistake == 2) && mistake != 4)
            s /= temperature;
        if (cap > 0)
            s = (mistake == 3 ? 1 : cap) * tanh(s / cap);
        P->expected[j] = mistake != 1 && hidden[j] ? 0 : exp(s);
        sum += P->expected[j];
    }
    for (long j = 0; j < n && sum > 0; j++)
        P->expected[j] /= sum;
}
