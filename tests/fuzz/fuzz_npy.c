/* SPDX-License-Identifier: MIT
 *
 * fuzz_npy.c: no bytes whatever may make the .npy reader crash, leak, or accept nonsense.
 *
 * The first byte chooses: the rest is a whole file, or it is the text of a header (and the data
 * behind it) to which this target adds magic, version and length. Random bytes seldom get past the
 * magic, so the second way is where most of the work is done.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "harness/io/npy.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int condition)
{
    if (!condition)
        abort();
}

static void read_file(const unsigned char *bytes, size_t size)
{
    char error[NPY_ERROR_SIZE];
    NpyArray a;
    memset(error, 'x', sizeof error);
    memset(&a, 0xFF, sizeof a);
    if (npy_parse(bytes, size, "fuzz.npy", &a, error) != 0) {
        /* one sentence that names the file */
        require(memchr(error, 0, sizeof error) && strstr(error, "fuzz.npy"));
        require(!strchr(error, '\n'));
        return;
    }
    int64_t product = 1;
    require(a.ndim >= 0 && a.ndim <= NPY_MAX_DIMS);
    for (int n = 0; n < a.ndim; n++) {
        require(a.shape[n] >= 0);
        product *= a.shape[n];
    }
    require(product == a.count && (a.count == 0 || a.data));
    require((uint64_t)a.count <= size); /* no element without a byte in the file */
    volatile double sum = 0.0;
    for (int64_t i = 0; i < a.count; i++)
        sum = sum + npy_value(&a, i);
    npy_free(&a);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2)
        return 0;
    if (data[0] % 4 == 0) {
        read_file(data + 1, size - 1);
        return 0;
    }
    /* magic, version 1.0, 16 bits of length: the second byte says how much of the rest is header */
    size_t rest = size - 2, header = data[1] % 160 < rest ? data[1] % 160 : rest;
    unsigned char *file = malloc(rest + 10);
    require(file != NULL);
    memcpy(file, "\x93NUMPY\x01\x00", 8);
    file[8] = (unsigned char)header;
    file[9] = 0;
    memcpy(file + 10, data + 2, rest);
    read_file(file, rest + 10);
    free(file);
    return 0;
}
