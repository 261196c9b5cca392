/* SPDX-License-Identifier: MIT
 *
 * report_save.c: --save. The values are those that the dtype holds, written as float32 in logical
 * order [B][N][H][d] whatever --strides says. All files of a case are written under temporary names
 * and renamed at the end, so that a folder never holds half a result. See report.h.
 */
#include "report_internal.h"

#include "npy.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_SIZE = 4096, FILES = 5 };

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
    return cli_refuse("--save: found that %s cannot be written to (%s), accepted is a folder that "
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

static int write_tensor(const char *path, const Tensor *t, char error[NPY_ERROR_SIZE])
{
    const int64_t count = tensor_count(t);
    float *values = malloc((size_t)count * sizeof *values), *to = values;
    int64_t b, n, h;
    int failed = -1;
    snprintf(error, NPY_ERROR_SIZE, "%.400s: out of memory", path);
    if (values) {
        for (b = 0; b < t->shape[0]; b++)
            for (n = 0; n < t->shape[1]; n++)
                for (h = 0; h < t->shape[2]; h++, to += t->shape[3])
                    tensor_read_row(t, b, n, h, to);
        failed = npy_write_f32(path, values, 4, t->shape, error);
    }
    free(values);
    return failed;
}

int report_save(Report *r, const CliCase *c, const Outcome *out)
{
    static const char *const names[FILES] = {"o", "lse", "dq", "dk", "dv"};
    const Tensor *tensors[FILES] = {&out->args.O, NULL, &out->args.dQ, &out->args.dK,
                                    &out->args.dV};
    const AttnShape *s = &out->args.shape;
    const int64_t lse_shape[3] = {s->B, s->H, s->Nq};
    const int files = c->backward ? FILES : 2;
    char dir[PATH_SIZE - 64], temporary[FILES][PATH_SIZE], path[PATH_SIZE];
    char error[NPY_ERROR_SIZE] = "";
    size_t made;
    int i, done = 0, failed = 0;
    if (!c->save_dir || !out->ran || r->saved == c)
        return EXIT_OK;
    if (c->line)
        snprintf(dir, sizeof dir, "%s/%d", c->save_dir, c->line);
    else
        snprintf(dir, sizeof dir, "%s", c->save_dir);
    if (make_folders(dir, &made) != 0)
        return refuse_folder(dir, strerror(errno));
    for (i = 0; i < files; i++)
        snprintf(temporary[i], sizeof temporary[i], "%s/.%s.%ld.npy", dir, names[i],
                 (long)getpid());
    for (i = 0; i < files && !failed; i++)
        failed =
            (tensors[i] ? write_tensor(temporary[i], tensors[i], error)
                        : npy_write_f32(temporary[i], out->args.lse, 3, lse_shape, error)) != 0;
    for (done = 0; done < files && !failed; done++) {
        snprintf(path, sizeof path, "%s/%s.npy", dir, names[done]);
        failed = rename(temporary[done], path) != 0;
        if (failed)
            snprintf(error, sizeof error,
                     "--save: found that %.200s cannot be written (%s), accepted is a folder where "
                     "it can",
                     path, strerror(errno));
    }
    if (failed) { /* none is better than some */
        for (i = 0; i < files; i++)
            unlink(temporary[i]);
        for (i = 0; i < done - 1; i++) {
            snprintf(path, sizeof path, "%s/%s.npy", dir, names[i]);
            unlink(path);
        }
        return cli_refuse("%s", error);
    }
    r->saved = c;
    return EXIT_OK;
}
