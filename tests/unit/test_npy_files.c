/* SPDX-License-Identifier: MIT
 *
 * test_npy_files.c: .npy files on disk: what is written is read, and failures leave nothing behind.
 *
 * (The format itself is tested in test_npy.c.)
 */
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "unit.h"

#include "io/npy.h"

/* A new folder for files; the test removes what it put there. */
static char folder[] = "/tmp/test_npy_XXXXXX";

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    return rmdir(folder); /* fails if a temporary file was left behind */
}

static const char *in_folder(const char *name)
{
    static char path[300];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

TEST(write_then_read)
{
    const int64_t shapes[][NPY_MAX_DIMS] = {
        {1}, {6}, {2, 3}, {1, 2, 1, 3}, {1, 1, 1, 6, 1, 1, 1, 1}};
    const int ndims[] = {0, 1, 2, 4, 8};
    const float data[6] = {1.0f, -2.0f, 0x1p-149f, INFINITY, 3e38f, -0.0f};
    const char *path = in_folder("a.npy");
    char error[NPY_ERROR_SIZE];
    struct stat info;
    NpyArray a;
    for (int t = 0; t < 5; t++) { /* each over the one before */
        assert_int_equal(npy_write_f32(path, data, ndims[t], shapes[t], error), 0);
        assert_int_equal(npy_read(path, &a, error), 0);
        assert_true(a.type == NPY_F4 && a.ndim == ndims[t] && a.count == (t ? 6 : 1));
        assert_memory_equal(a.shape, shapes[t], (size_t)a.ndim * sizeof(int64_t));
        assert_memory_equal(a.data, data, (size_t)a.count * sizeof(float));
        assert_int_equal(stat(path, &info), 0);
        assert_int_equal(((size_t)info.st_size - (size_t)a.count * 4) % 64, 0); /* as numpy pads */
        npy_free(&a);
    }
    unlink(path);
}

TEST(read_failures)
{
    const char *path = in_folder("none.npy");
    char error[NPY_ERROR_SIZE];
    NpyArray a;
    int fd;
    assert_int_equal(npy_read(path, &a, error), -1);
    assert_non_null(strstr(error, "none.npy: cannot be opened: No such file"));
    assert_int_equal(npy_read(folder, &a, error), -1);
    assert_non_null(strstr(error, "not a regular file"));
    assert_int_equal(mkfifo(path, 0600), 0); /* must not wait for a writer */
    assert_int_equal(npy_read(path, &a, error), -1);
    unlink(path);
    fd = open(path, O_WRONLY | O_CREAT, 0600);
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(npy_read(path, &a, error), -1);
    assert_non_null(strstr(error, "not a .npy file"));
    unlink(path);
}

/* A shape of 8 terabytes in a file that is that long, but holds nothing: refused, not allocated. */
TEST(huge_sparse_file)
{
    const char *path = in_folder("huge.npy");
    char error[NPY_ERROR_SIZE];
    static const char file[] =
        "\x93NUMPY\x01\x00\x46\x00"
        "{'descr': '|u1', 'fortran_order': False, 'shape': (8000000000000,), }\n";
    const size_t size = sizeof file - 1; /* 10 bytes and a header of 0x46 = 70 */
    int fd = open(path, O_WRONLY | O_CREAT, 0600);
    NpyArray a;
    assert_true(fd >= 0 && write(fd, file, size) == (ssize_t)size);
    if (ftruncate(fd, (off_t)size + 8000000000000) == 0) { /* not every file system can */
        assert_int_equal(npy_read(path, &a, error), NPY_NO_MEMORY);
        assert_non_null(strstr(error, "not enough memory"));
    }
    close(fd);
    unlink(path);
}

TEST(write_failures)
{
    const int64_t shape[2] = {2, 1}, negative[2] = {-2, 1}, empty[2] = {2, 0};
    const float data[2] = {1.0f, 2.0f};
    char error[NPY_ERROR_SIZE];
    assert_int_equal(npy_write_f32(in_folder("no/such/a.npy"), data, 2, shape, error), -1);
    assert_non_null(strstr(error, "a.npy: cannot be written: No such file"));
    assert_int_equal(npy_write_f32(folder, data, 2, shape, error), -1); /* a folder is in the way */
    assert_non_null(strstr(error, "cannot be written"));
    assert_int_equal(npy_write_f32(in_folder("a.npy"), data, 2, negative, error), -1);
    assert_int_equal(npy_write_f32(in_folder("a.npy"), data, 2, empty, error), -1);
    assert_int_equal(npy_write_f32(in_folder("a.npy"), data, 9, shape, error), -1);
    assert_int_equal(access(in_folder("a.npy"), F_OK), -1);
}

BETWEEN(make_folder, remove_folder)
