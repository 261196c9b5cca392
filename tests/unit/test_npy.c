/* SPDX-License-Identifier: MIT
 *
 * test_npy.c: every way a .npy file can be wrong has its own sentence; right ones give the values.
 *
 * Files are built here byte by byte, so that the reader is never tested against the writer alone.
 * And on disk: what is written is read, and failures leave nothing behind.
 */
#include <fcntl.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include "unit.h"

#include "harness/io/npy.h"

/* A file of format `major`: header text as given (no padding), then `bytes` bytes of data. The
 * block is exactly as long as the file, so that a sanitizer sees a read behind its end. */
static unsigned char *make_file(int major, const char *header, const void *data, size_t bytes,
                                size_t *size)
{
    const size_t length = strlen(header), start = major == 1 ? 10 : 12;
    unsigned char *file;
    *size = start + length + bytes;
    file = malloc(*size);
    assert_non_null(file);
    memcpy(file, "\x93NUMPY", 6);
    file[6] = (unsigned char)major;
    file[7] = 0;
    file[8] = (unsigned char)(length & 0xFF);
    file[9] = (unsigned char)(length >> 8);
    if (major > 1)
        file[10] = file[11] = 0;
    memcpy(file + start, header, length);
    if (bytes > 0)
        memcpy(file + start + length, data, bytes);
    return file;
}

static int parse(int major, const char *header, const void *data, size_t bytes, NpyArray *a,
                 char error[NPY_ERROR_SIZE])
{
    size_t size;
    unsigned char *file = make_file(major, header, data, bytes, &size);
    const int result = npy_parse(file, size, "x.npy", a, error);
    free(file);
    return result;
}

#define HEADER(descr, shape)                                                                       \
    "{'descr': '" descr "', 'fortran_order': False, 'shape': " shape ", }    \n"

TEST(every_type_and_format)
{
    static const float f4[6] = {0.0f, 1.5f, -2.25f, 1e30f, -0.0f, 65504.0f};
    static const double f8[6] = {0.1, 1e300, -3.0, 0.0, 5e-324, 7.0};
    static const uint16_t f2[6] = {0x0000, 0x3C00, 0xC000, 0x7BFF, 0x0001, 0xFC00};
    static const double f2_value[6] = {0.0, 1.0, -2.0, 65504.0, 0x1p-24, -INFINITY};
    static const uint8_t u1[6] = {0, 1, 2, 127, 128, 255}, b1[6] = {0, 1, 1, 0, 0, 1};
    static const int32_t i4[6] = {0, -1, 2147483647, -2147483647 - 1, 5, 6};
    static const int64_t i8[6] = {0, -1, INT64_C(1) << 40, -7, 8, 9};
    char error[NPY_ERROR_SIZE];
    NpyArray a;
    int major;
#define READ(descr, from, kind, text, expected)                                                    \
    do {                                                                                           \
        assert_int_equal(parse(major, HEADER(descr, "(2, 3)"), from, sizeof from, &a, error), 0);  \
        assert_true(a.type == kind && a.ndim == 2 && a.count == 6);                                \
        assert_true(a.shape[0] == 2 && a.shape[1] == 3);                                           \
        assert_string_equal(npy_type_name(a.type), text);                                          \
        assert_memory_equal(a.data, from, sizeof from);                                            \
        for (int i = 0; i < 6; i++)                                                                \
            assert_true(npy_value(&a, i) == (double)(expected)[i]);                                \
        npy_free(&a);                                                                              \
        assert_null(a.data);                                                                       \
    } while (0)
    for (major = 1; major <= 3; major++) {
        READ("<f2", f2, NPY_F2, "f2", f2_value);
        READ("<f4", f4, NPY_F4, "f4", f4);
        READ("<f8", f8, NPY_F8, "f8", f8);
        READ("|u1", u1, NPY_U1, "u1", u1);
        READ("|b1", b1, NPY_BOOL, "bool", b1);
        READ("<i4", i4, NPY_I4, "i4", i4);
        READ("<i8", i8, NPY_I8, "i8", i8);
    }
}

/* Other ways in which Python may write the same dict. */
TEST(accepted_headers)
{
    static const char *const headers[] = {
        "{'shape': (2,), 'fortran_order': False, 'descr': '<f4'}",
        "{\"descr\":\"<f4\",\"shape\":(2,),\"fortran_order\":False}\n",
        "  {  'fortran_order'  :  False ,\n\t'shape' : ( 2 , ) , 'descr' : '<f4' , }  \r\n",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2, 1,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, 1, 2, 1, 1, 1, 1)}",
    };
    static const float data[2] = {3.0f, 4.0f};
    char error[NPY_ERROR_SIZE];
    NpyArray a;
    for (size_t t = 0; t < sizeof headers / sizeof headers[0]; t++) {
        assert_int_equal(parse(1, headers[t], data, sizeof data, &a, error), 0);
        assert_true(a.count == 2 && npy_value(&a, 1) == 4.0);
        npy_free(&a);
    }
    assert_int_equal(parse(2, HEADER("<f4", "()"), data, 4, &a, error), 0); /* a single number */
    assert_true(a.ndim == 0 && a.count == 1 && npy_value(&a, 0) == 3.0);
    npy_free(&a);
}

typedef struct Refused {
    const char *header, *says; /* says: words that the sentence must have */
} Refused;

#define REST ", 'fortran_order': False, 'shape': (2,)}"
static const Refused refused[] = {
    {HEADER(">f4", "(2,)"), "'>f4' is big-endian"},
    {HEADER(">i8", "(2,)"), "big-endian"},
    {HEADER("|O", "(2,)"), "'|O'; accepted are <f2"},
    {HEADER("<c8", "(2,)"), "'<c8'"},
    {HEADER("<U4", "(2,)"), "'<U4'"},
    {HEADER("<f16", "(2,)"), "'<f16'"},
    {HEADER("=f4", "(2,)"), "'=f4'"},
    {HEADER("f4", "(2,)"), "'f4'"},
    {HEADER("<i2", "(2,)"), "'<i2'"},
    {HEADER("", "(2,)"), "the dtype is ''"},
    {HEADER("0123456789012345678901234567890123456789", "(2,)"), "a dtype such as"},
    {"{'descr': [('a', '<f4')]" REST, "structured"},
    {"{'descr': '<f4" REST, "the dtype is '<f4, '"},
    {"{'descr': \"<f4'" REST, "a dtype such as"},
    {"{'descr': '<\\x664'" REST, "a dtype such as"},
    {"{'descr': 4" REST, "a dtype such as"},
    {"{'descr': '<f4', 'fortran_order': True, 'shape': (2,)}", "Fortran order"},
    {"{'descr': '<f4', 'fortran_order': Falsehood, 'shape': (2,)}", "True or False"},
    {"{'descr': '<f4', 'fortran_order': 0, 'shape': (2,)}", "True or False"},
    {"{'descr': '<f4', 'fortran_order': 'False', 'shape': (2,)}", "True or False"},
    {HEADER("<f4", "(2)"), "lacks its comma"},
    {HEADER("<f4", "2"), "shape in parentheses"},
    {HEADER("<f4", "[2]"), "shape in parentheses"},
    {HEADER("<f4", "(2"), "a size"},
    {HEADER("<f4", "(,)"), "a size"},
    {HEADER("<f4", "(2,,)"), "a size"},
    {HEADER("<f4", "(1 2)"), "comma or the end"},
    {HEADER("<f4", "(02,)"), "a size"},
    {HEADER("<f4", "(2L,)"), "comma or the end"},
    {HEADER("<f4", "(2.0,)"), "comma or the end"},
    {HEADER("<f4", "(+2,)"), "a size"},
    {HEADER("<f4", "(0x2,)"), "comma or the end"},
    {HEADER("<f4", "(-2,)"), "negative"},
    {HEADER("<f4", "(- 2,)"), "a size"},
    {HEADER("<f4", "(0,)"), "empty: dimension 0"},
    {HEADER("<f4", "(2, 0)"), "empty: dimension 1"},
    {HEADER("<f4", "(1, 1, 1, 1, 1, 1, 1, 1, 2)"), "more than 8 dimensions"},
    {HEADER("<f4", "(9223372036854775808,)"), "above 2^63"},
    {HEADER("<f4", "(99999999999999999999999999,)"), "above 2^63"},
    {HEADER("<f4", "(9223372036854775807,)"), "more than 2^63 bytes"},
    {HEADER("<f4", "(4294967296, 4294967296)"), "more than 2^63 elements"},
    {HEADER("<f4", "(3037000500, 3037000500)"), "more than 2^63 elements"},
    {HEADER("<f4", "(1000000000000,)"), "8 bytes of data; its shape and dtype need 4000000000000"},
    {HEADER("<f4", "(3,)"), "8 bytes of data; its shape and dtype need 12"},
    {HEADER("<f4", "(1,)"), "8 bytes of data; its shape and dtype need 4"},
    {HEADER("<f8", "(2,)"), "8 bytes of data; its shape and dtype need 16"},
    {"{'descr': '<f4', 'fortran_order': False}", "lacks the key 'shape'"},
    {"{'descr': '<f4', 'shape': (2,)}", "lacks the key 'fortran_order'"},
    {"{'fortran_order': False, 'shape': (2,)}", "lacks the key 'descr'"},
    {"{}", "lacks the key"},
    {"{,}", "expected"},
    {"{'descr': '<f4', 'descr': '<f4'" REST, "twice the key 'descr'"},
    {"{'order': 'C', 'descr': '<f4'" REST, "unknown key 'order'"},
    {"{'descr': '<f4'" REST "}", "the end of the header"},
    {"{'descr': '<f4'" REST " # comment", "the end of the header"},
    {"{'descr': '<f4',, 'fortran_order': False, 'shape': (2,)}", "expected"},
    {"{'descr': '<f4' 'fortran_order': False, 'shape': (2,)}", "a comma or }"},
    {"{'descr' '<f4'" REST, "a colon"},
    {"{'descr': '<f4'", "a comma or }"},
    {"{'descr': ", "a dtype such as"},
    {"{'descr", "'descr', 'fortran_order' or 'shape'"},
    {"['descr', '<f4']", "where { is expected"},
    {"", "where { is expected"},
    {"\x01\xFF\x80 binary", "???"},
};

TEST(refused_headers)
{
    static const float data[2] = {1.0f, 2.0f};
    char error[NPY_ERROR_SIZE];
    NpyArray a;
    for (size_t t = 0; t < sizeof refused / sizeof refused[0]; t++)
        for (int major = 1; major <= 3; major++) {
            memset(error, '!', sizeof error);
            assert_int_equal(parse(major, refused[t].header, data, sizeof data, &a, error), -1);
            assert_null(a.data);
            if (strstr(error, refused[t].says) == NULL || strncmp(error, "x.npy: ", 7) != 0)
                fail_msg("header %s: \"%s\" does not say \"%s\"", refused[t].header, error,
                         refused[t].says);
        }
}

/* Every beginning of a good file is refused, and so is every file with something behind it. */
TEST(cut_and_long_files)
{
    static const float data[2] = {1.0f, 2.0f};
    char error[NPY_ERROR_SIZE];
    NpyArray a;
    size_t size;
    for (int major = 1; major <= 3; major++) {
        unsigned char *file = make_file(major, HEADER("<f4", "(2,)"), data, 8, &size), *cut;
        assert_int_equal(npy_parse(file, size, "x.npy", &a, error), 0);
        npy_free(&a);
        for (size_t n = 0; n < size; n++) {
            cut = malloc(n ? n : 1); /* of this length, for the sanitizer */
            assert_non_null(cut);
            memcpy(cut, file, n);
            assert_int_equal(npy_parse(cut, n, "x.npy", &a, error), -1);
            free(cut);
        }
        free(file);
    }
}

TEST(bad_fronts)
{
    static const float data[2] = {1.0f, 2.0f};
    static const struct {
        int at, value;
        const char *says;
    } change[] = {
        {0, 'N', "does not begin with"}, {5, 'y', "does not begin with"},
        {6, 0, "format 0.0; accepted"},  {6, 4, "format 4.0; accepted"},
        {7, 1, "format 2.1; accepted"},  {10, 1, "at most 65535 are accepted"},
        {11, 0xFF, "at most 65535 are"}, {9, 0x7F, "ends inside the .npy header"},
    };
    char error[NPY_ERROR_SIZE];
    NpyArray a;
    size_t size;
    for (size_t t = 0; t < sizeof change / sizeof change[0]; t++) {
        unsigned char *file = make_file(2, HEADER("<f4", "(2,)"), data, 8, &size);
        file[change[t].at] = (unsigned char)change[t].value;
        assert_int_equal(npy_parse(file, size, "x.npy", &a, error), -1);
        if (strstr(error, change[t].says) == NULL)
            fail_msg("\"%s\" does not say \"%s\"", error, change[t].says);
        free(file);
    }
}

TEST(bool_bytes)
{
    static const uint8_t bad[3] = {0, 1, 2};
    char error[NPY_ERROR_SIZE];
    NpyArray a;
    assert_int_equal(parse(1, HEADER("|b1", "(3,)"), bad, 3, &a, error), -1);
    assert_non_null(strstr(error, "the byte 2"));
    assert_null(a.data);
}

TEST(long_names_leave_room)
{
    char name[2000], error[NPY_ERROR_SIZE];
    NpyArray a;
    memset(name, 'n', sizeof name);
    memcpy(name + sizeof name - 7, "/x.npy", 7);
    assert_int_equal(npy_parse((const unsigned char *)"", 0, name, &a, error), -1);
    assert_non_null(strstr(error, "/x.npy: not a .npy file"));
    assert_true(strlen(error) < NPY_ERROR_SIZE);
}

/* --- on disk -----------------------------------------------------------------------------------*/

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
