/* SPDX-License-Identifier: MIT
 *
 * report_internal.h: between the files of the report; nobody else includes it.
 *
 * Interface:
 * - report_json, report_json_softmax: one object, one line.
 * - row_flops, row_gflops, row_peak, row_pass: figures that table and JSON share.
 * - put_...: a field of an object. head_...: what stands above the rows.
 * - save_probe: can files be written into DIR? Leaves nothing behind.
 */
#ifndef ATTN_REPORT_INTERNAL_H
#define ATTN_REPORT_INTERNAL_H

#include "report/report.h"

void report_json(Report *r, const ReportRow *row);
void report_json_softmax(Report *r, const ReportSoftmax *row);
/* Of the passes that were run. In a stage whose subject is the backward pass
 * (STAGE_ALWAYS_BACKWARD) the forward is another stage's: there it is the backward alone. */
double row_flops(const Report *r, const ReportRow *row);
double row_gflops(const Report *r, const ReportRow *row); /* NaN if the run failed */
size_t row_peak(const Report *r, const ReportRow *row);   /* workspace of the same passes, bytes */
int row_pass(const ReportRow *row);                       /* 1, 0, or -1 = not checked */
/* A stage whose subject is the backward pass. */
int backward_alone(const Report *r);
void head_machine(const Report *r, const CliCase *c); /* before the first row */
void head_case(const Report *r, const ReportRow *row);
/* Stage 05's last column, how many tiles the window leaves; NULL: its heading. */
void head_tiles(const Report *r, const ReportTiles *tiles);
/* Stage 06 (report_ring.c): more words about the case, the last columns, the fields of JSON. */
void head_ring_case(const Report *r, const ReportRow *row);
void head_ring(const Report *r, const ReportRow *row); /* NULL: their heading */
void json_ring(FILE *f, const ReportRow *row);
/* Fields of a JSON object, each with a comma before it. null: no text, a count of 0, a number that
 * is not finite, a truth below 0. */
void put_string(FILE *f, const char *key, const char *text);
void put_int(FILE *f, const char *key, int64_t value);
void put_count(FILE *f, const char *key, int64_t value);
void put_number(FILE *f, const char *key, double value);
void put_bool(FILE *f, const char *key, int value);
void put_samples(FILE *f, const char *key, const Samples *s);
const char *bytes_text(char text[16], double bytes); /* "12.3 MiB"; "-" for an unknown size */
int save_probe(const char *dir);                     /* EXIT_OK or EXIT_USAGE */

#endif
