/* SPDX-License-Identifier: MIT
 *
 * report_internal.h: between the files of the report; nobody else includes it.
 *
 * Interface:
 * - report_json, report_json_softmax: one object, one line.
 * - row_gflops, row_sgemm_share: figures that table and JSON share.
 * - save_probe: can files be written into DIR? Leaves nothing behind.
 */
#ifndef ATTN_REPORT_INTERNAL_H
#define ATTN_REPORT_INTERNAL_H

#include "report.h"

void report_json(const Report *r, const ReportRow *row);
void report_json_softmax(const Report *r, const ReportSoftmax *row);
double row_ms(const ReportRow *row);     /* median forward + median backward; NaN if it failed */
double row_flops(const ReportRow *row);  /* forward and, if run, backward */
double row_gflops(const ReportRow *row); /* NaN if it failed */
int row_pass(const ReportRow *row);      /* 1, 0, or -1 = not checked */
int save_probe(const char *dir);         /* EXIT_OK or EXIT_USAGE */

#endif
