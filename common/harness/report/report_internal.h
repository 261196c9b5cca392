/* SPDX-License-Identifier: MIT
 *
 * report_internal.h: between the files of the report; nobody else includes it.
 *
 * Interface:
 * - report_json, report_json_softmax: one object, one line.
 * - row_flops, row_gflops, row_peak, row_pass: figures that table and JSON share.
 * - head_...: what stands above the rows.
 * - save_probe: can files be written into DIR? Leaves nothing behind.
 */
#ifndef ATTN_REPORT_INTERNAL_H
#define ATTN_REPORT_INTERNAL_H

#include "harness/report/report.h"

void report_json(Report *r, const ReportRow *row);
void report_json_softmax(Report *r, const ReportSoftmax *row);
/* Of the passes that were run. In a stage whose subject is the backward pass
 * (STAGE_ALWAYS_BACKWARD) the forward is another stage's: there it is the backward alone. */
double row_flops(const Report *r, const ReportRow *row);
double row_gflops(const Report *r, const ReportRow *row); /* NaN if the run failed */
size_t row_peak(const Report *r, const ReportRow *row);   /* workspace of the same passes, bytes */
int row_pass(const ReportRow *row);                       /* 1, 0, or -1 = not checked */
/* Stage 06: more words about the case; the last columns, NULL: their heading. */
void head_ring_case(const Report *r, const ReportRow *row);
void head_ring(const Report *r, const ReportRow *row);
const char *bytes_text(char text[16], double bytes); /* "12.3 MiB"; "-" for an unknown size */
int save_probe(const char *dir);                     /* EXIT_OK or EXIT_USAGE */

#endif
