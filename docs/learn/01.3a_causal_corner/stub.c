/* SPDX-License-Identifier: MIT
 *
 * 01.3a: the rule of the causal mask.
 */

/* 1: query i of Nq may see key j of Nk; 0: it may not */
int visible(int i, int j, int Nq, int Nk)
{
    int sees = 0;
    /* YOUR CODE: 3 lines are enough */
    /* END OF YOUR CODE */
    return sees;
}
