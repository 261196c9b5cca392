/* SPDX-License-Identifier: MIT
 *
 * model_row.h: what the rows of stages 03 and 04 move, by their tiles.
 *
 * A rung names its tiles itself, the library in Variant. A rung on a CPU moves float32, whatever
 * the tensors hold.
 *
 * Interface: model_forward_row, model_backward_row: into model_bytes and tiles of the row.
 * sram: elements of fast memory of the papers' rungs where --sram names none.
 */
#ifndef ATTN_MODEL_ROW_H
#define ATTN_MODEL_ROW_H

#include "harness/report/report.h"

void model_forward_row(ReportRow *row, int64_t sram);
void model_backward_row(ReportRow *row);

#endif
