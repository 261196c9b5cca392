/* SPDX-License-Identifier: MIT
 *
 * source_hash.h: which sources, revision and flags this program was built from.
 *
 * Interface (the build generates the C file: common/tools/source_hashes.py):
 * - variant_sha256: SHA-256 of the code in a variant's own file, in hex; "": no such file.
 *   device, "cpu" or "cuda": the library has files for each.
 * - variant_sources_sha256: the same of that file and all that it includes, with helper files.
 * - build_revision: the .revision file, or `git describe --always --dirty`, or "unknown".
 * - build_flags: compiler and flags, one line.
 */
#ifndef ATTN_SOURCE_HASH_H
#define ATTN_SOURCE_HASH_H

const char *variant_sha256(const char *stage_folder, const char *variant, const char *device);
const char *variant_sources_sha256(const char *stage_folder, const char *variant,
                                   const char *device);
const char *build_revision(void);
const char *build_flags(void);
#endif
