/* SPDX-License-Identifier: MIT
 *
 * attn_runner: the program in which a submission runs. The judge starts it (isolate.c); by hand it
 * does nothing. It has the functions that a submission may call and no others: the rows of tensors,
 * 16-bit floats and counted memory. There is no attention in it, and no oracle.
 *
 * Interface: none.
 */
#include <stdio.h>

#include "alloc.h"
#include "course/runner.h"

/* No block lies on a GPU here. */
void workspace_settle(void)
{
}

int main(int argc, char **argv)
{
    if (argc < 1 || !runner_wanted(argv[0])) {
        fputs("attn_runner: found no judge at descriptor 3, accepted is a start by one\n", stderr);
        return 2;
    }
    runner_serve(NULL);
}
