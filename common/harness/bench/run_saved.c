/* SPDX-License-Identifier: MIT
 *
 * run_saved.c: --judge, outputs that another program wrote into files: NumPy, PyTorch, Triton, JAX,
 * in any language that can write .npy. They are compared with the oracle of the same flags like any
 * variant's. Such a program gets its inputs from files, too (--q --k --v, which it wrote or read).
 *
 * Interface: run_saved (run.h).
 */
#include <inttypes.h>
#include <stdio.h>

#include "harness/bench/run.h"
#include "harness/io/npy.h"

enum { PATH_SIZE = 4096 };

/* lse: [B][H][Nq], of thd [H][total]: the elements are in the same order. */
static int read_lse(const char *path, const CliCase *c, const RunResult *out)
{
    const AttnShape *s = &out->args.shape;
    const int64_t shape[3] = {s->B, s->H, s->Nq};
    const int first = c->tensors == CLI_THD;
    char error[NPY_ERROR_SIZE];
    NpyArray a;
    const int failed = npy_read(path, &a, error);
    int same = !failed && a.ndim == 3 - first && a.type <= NPY_F8;
    if (failed) {
        cli_refuse("%s (--judge takes a .npy file of f2, f4 or f8)", error);
        return failed == NPY_NO_MEMORY ? EXIT_RUNTIME : EXIT_USAGE;
    }
    for (int t = first; same && t < 3; t++)
        same = a.shape[t - first] == shape[t];
    for (int64_t n = 0; same && n < a.count; n++)
        out->args.lse[n] = (float)npy_value(&a, n);
    npy_free(&a);
    return same ? EXIT_OK
                : cli_refuse(
                      "%s: found another shape or type, accepted is f2, f4 or f8 with %s%" PRId64
                      " heads and %" PRId64 " queries",
                      path, first ? "" : "the batches, ", s->H, s->Nq);
}

int run_saved(RunResult *out, const Inputs *p, const CliCase *c)
{
    static const char *const names[] = {"o", "dq", "dk", "dv"};
    char dir[PATH_SIZE - 64], path[PATH_SIZE];
    int status = result_make(out, p, c);
    const Tensor *const tensors[] = {&out->args.O, &out->args.dQ, &out->args.dK, &out->args.dV};
    if (status != EXIT_OK)
        return cli_no_memory("--judge");
    if (c->line)
        snprintf(dir, sizeof dir, "%s/%d", c->judge_dir, c->line);
    else
        snprintf(dir, sizeof dir, "%s", c->judge_dir);
    snprintf(path, sizeof path, "%s/lse.npy", dir);
    status = read_lse(path, c, out);
    for (int i = 0; status == EXIT_OK && i < (c->backward ? 4 : 1); i++) {
        snprintf(path, sizeof path, "%s/%s.npy", dir, names[i]);
        status = inputs_read_result(path, c, tensors[i]);
    }
    out->ran = status == EXIT_OK;
    return status;
}
