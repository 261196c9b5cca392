/* SPDX-License-Identifier: MIT
 *
 * report_save.c: --save. The values are those that the dtype holds, written as float32 in logical
 * order [B][N][H][d] whatever --strides says, or as --tensor-layout wants it. All files of a case
 * are written under temporary names and renamed at the end, so that a folder never holds half a
 * result. See report.h.
 */
#include "harness/report/report_internal.h"

#include "harness/io/npy.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SAVE_LSE = 1, SAVE_DWQ = 5 };
enum { PATH_SIZE = 4096, FILES = 7 };

/* mkdir -p. *made: length of the shortest prefix that was created here, 0 = none. */
static int make_folders(const char *dir, size_t *made)
{
    char path[PATH_SIZE];
    size_t i, length = strlen(dir);
    *made = 0;
    if (length + 64 > sizeof path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    for (i = 1; i <= length; i++) {
        if (dir[i] != '/' && dir[i] != '\0')
            continue;
        memcpy(path, dir, i);
        path[i] = '\0';
        if (mkdir(path, 0777) == 0)
            *made = *made ? *made : i;
        else if (errno != EEXIST)
            return -1;
    }
    return 0;
}

/* Takes away the folders that make_folders made: those of `dir` from `made` characters on. */
static void remove_folders(const char *dir, size_t made)
{
    char path[PATH_SIZE];
    size_t length = strlen(dir);
    snprintf(path, sizeof path, "%s", dir);
    while (made && length >= made) {
        path[length] = '\0';
        if (rmdir(path) != 0 && errno != ENOENT) /* "a//b/" names a/b more than once */
            return;
        do
            length--;
        while (length >= made && dir[length] != '/');
    }
}

static int refuse_folder(const char *dir, const char *why)
{
    return cli_refuse(
        "--save: found that '%s' cannot be written to (%s), accepted is a folder that "
        "can",
        dir, why);
}

int save_probe(const char *dir)
{
    char path[PATH_SIZE];
    size_t made;
    int handle, failed;
    if (make_folders(dir, &made) != 0) {
        failed = errno;
        remove_folders(dir, made);
        return refuse_folder(dir, strerror(failed));
    }
    snprintf(path, sizeof path, "%s/.probe-XXXXXX", dir);
    handle = mkstemp(path);
    failed = errno;
    if (handle >= 0) {
        close(handle);
        unlink(path);
    }
    remove_folders(dir, made);
    return handle >= 0 ? EXIT_OK : refuse_folder(dir, strerror(failed));
}

/* After the work: the disk, not the command line. */
static int refuse_write(const char *why)
{
    cli_refuse("--save: %s; accepted is a folder on a disk with room", why);
    return EXIT_RUNTIME;
}

static int write_tensor(const char *path, const Tensor *t, CliTensors tensors,
                        char error[NPY_ERROR_SIZE])
{
    const int64_t count = tensor_count(t), B = t->shape[0], N = t->shape[1], H = t->shape[2];
    const int64_t sbhd[4] = {N, B, H, t->shape[3]};
    float *values = malloc((size_t)count * sizeof *values);
    int failed = -1;
    snprintf(error, NPY_ERROR_SIZE, "%.400s: cannot be written: memory is short", path);
    if (values) {
        for (int64_t b = 0; b < B; b++)
            for (int64_t n = 0; n < N; n++)
                for (int64_t h = 0; h < H; h++) {
                    const int64_t token = tensors == CLI_SBHD ? n * B + b : b * N + n;
                    tensor_read_row(t, b, n, h, values + (token * H + h) * t->shape[3]);
                }
        failed = tensors == CLI_THD    ? npy_write_f32(path, values, 3, t->shape + 1, error)
                 : tensors == CLI_SBHD ? npy_write_f32(path, values, 4, sbhd, error)
                                       : npy_write_f32(path, values, 4, t->shape, error);
    }
    free(values);
    return failed;
}

/* One of the files: t is a tensor with --tensor-layout's dimensions, or NULL. lse and the weights'
 * gradients are float32 and contiguous; THD has one row of lse for all sequences. */
static int write_one(const char *path, int which, const Tensor *t, const CliCase *c,
                     const RunResult *out, char error[NPY_ERROR_SIZE])
{
    const AttnShape *s = &out->args.shape;
    const int thd = c->tensors == CLI_THD;
    const int64_t lse_shape[3] = {s->B, s->H, s->Nq};
    const int64_t weights = (which == SAVE_DWQ ? s->H : s->Hkv) * s->d;
    if (which == SAVE_LSE)
        return npy_write_f32(path, out->args.lse, thd ? 2 : 3, lse_shape + thd, error);
    if (t)
        return write_tensor(path, t, c->tensors, error);
    return npy_write_f32(path, which == SAVE_DWQ ? out->options.dwq : out->options.dwk, 1, &weights,
                         error);
}

int report_save(Report *r, const CliCase *c, const RunResult *out)
{
    static const char *const names[FILES] = {"o", "lse", "dq", "dk", "dv", "dwq", "dwk"};
    const AttnArgs *a = &out->args;
    const Tensor *tensors[FILES] = {&a->O, NULL, &a->dQ, &a->dK, &a->dV, NULL, NULL};
    const int files = !c->backward ? 2 : c->norm_group ? FILES : SAVE_DWQ;
    char dir[PATH_SIZE - 64], temporary[FILES][PATH_SIZE], path[PATH_SIZE];
    char error[NPY_ERROR_SIZE] = "";
    size_t made;
    int done = 0, failed = 0;
    if (!c->save_dir || !out->ran || r->saved == c)
        return EXIT_OK;
    if (c->line)
        snprintf(dir, sizeof dir, "%s/%d", c->save_dir, c->line);
    else
        snprintf(dir, sizeof dir, "%s", c->save_dir);
    if (make_folders(dir, &made) != 0) {
        snprintf(error, sizeof error, "%.200s: cannot be made: %s", dir, strerror(errno));
        return refuse_write(error);
    }
    for (int i = 0; i < files; i++)
        snprintf(temporary[i], sizeof temporary[i], "%s/.%s.%ld.npy", dir, names[i],
                 (long)getpid());
    for (int i = 0; i < files && !failed; i++)
        failed = write_one(temporary[i], i, tensors[i], c, out, error) != 0;
    for (done = 0; done < files && !failed; done++) {
        snprintf(path, sizeof path, "%s/%s.npy", dir, names[done]);
        failed = rename(temporary[done], path) != 0;
        if (failed)
            snprintf(error, sizeof error, "%.200s: cannot be written: %s", path, strerror(errno));
    }
    if (failed) { /* none is better than some */
        for (int i = 0; i < files; i++)
            unlink(temporary[i]);
        for (int i = 0; i < done - 1; i++) {
            snprintf(path, sizeof path, "%s/%s.npy", dir, names[i]);
            unlink(path);
        }
        return refuse_write(error);
    }
    r->saved = c;
    return EXIT_OK;
}
