/* SPDX-License-Identifier: MIT
 *
 * 05.1b: which kernel a window takes.
 */

typedef struct Plan { /* -1: no limit; causal: the faster kernel, which looks at nothing else */
    int left, right, causal;
} Plan;

/* A side that is so wide that it hides nothing has no limit: its comparison is saved. */
static Plan plan_of(int Nq, int Nk, int left, int right)
{
    Plan plan = {left, right, 0};
    if (left >= Nk - 1)
        plan.left = -1;
    if (right >= Nq - 1)
        plan.right = -1;
    plan.causal = plan.left < 0 && plan.right == 0;
    return plan;
}

/* Does query i see key j? Query i stands at i + Nk - Nq. */
int sees(int i, int j, int Nq, int Nk, int left, int right)
{
    const Plan plan = plan_of(Nq, Nk, left, right);
    const int position = i + Nk - Nq;
    if (plan.causal)
        return j <= position;
    if (plan.left >= 0 && j < position - plan.left)
        return 0;
    return plan.right < 0 || j <= position + plan.right;
}
