/* SPDX-License-Identifier: MIT
 *
 * capped_row.c: judges the weights of a row with a cap, a temperature and a mask.
 *
 * Interface: -N keys, --cap, --temperature: whole numbers, --masked: every third key is hidden,
 * --empty: all are, --loud: hidden keys have scores far above the others.
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
    {"hidden_maximum",
     "m is the maximum over hidden keys as well. Where one of them is far above the visible ones, "
     "exp(s - m) is 0 for all of these, and the row comes out as zeros."},
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
    qk = normal_input("qk", n, 1, NULL);
    hidden = case_memory(n, 1);
    P = output("P", n, 1, "key", "");
    for (long j = 0; j < n; j++) {
        qk[j] *= 6.0f;
        qk[j] += has_flag("--loud") && j % 3 == 1 ? 500.0f : 0.0f;
        hidden[j] = has_flag("--empty") || (has_flag("--masked") && j % 3 == 1);
    }
}

void call(void)
{
    weights_of_row(qk, hidden, P->found, (int)n, scale, cap, temperature);
}

void expect(int mistake)
{
    double sum = 0, most = -INFINITY;
    for (long j = 0; j < n; j++) {
        double s = (double)scale * qk[j];
        if (mistake == 1 && hidden[j])
            s = -INFINITY;
        if ((cap == 0 || mistake == 2) && mistake != 4)
            s /= temperature;
        if (cap > 0)
            s = (mistake == 3 ? 1 : cap) * tanh(s / cap);
        most = fmax(most, s);
        P->expected[j] = mistake != 1 && hidden[j] ? 0 : exp(s);
        sum += P->expected[j];
    }
    for (long j = 0; j < n && sum > 0; j++)
        P->expected[j] = mistake == 5 && most - log(sum) > 100 ? 0 : P->expected[j] / sum;
}
