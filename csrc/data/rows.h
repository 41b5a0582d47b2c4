/*
 * rows.h - rows of tables, gathered into a batch.
 *
 * What a data loader does sample by sample: row index[i] of a table becomes row i of
 * the batch. Bytes are moved, so any element type will do.
 */
#ifndef PTAC_DATA_ROWS_H
#define PTAC_DATA_ROWS_H

#include "core/base.h"

/* A table of rows; bytes of a row lie one behind the other, rows are stride apart. */
typedef struct ptac_table {
    const char *data;
    int64_t n_rows;
    int64_t row_bytes;
    int64_t stride; /* bytes from a row to the next, negative too */
} ptac_table;

/*
 * Whether all of the n indices are rows of each table. Those below zero, which count
 * from a table's end, are made to count from its beginning; nothing is changed where
 * one is not a row, or where tables of different lengths would read one differently.
 */
bool ptac_rows_resolve(const ptac_table *tables, int n_tables, int64_t *index,
                       int64_t n);

/*
 * Copy row index[i] of the table to row i of out, which has n rows without gaps and
 * overlaps nothing. In several threads where there is enough to copy.
 */
void ptac_rows_gather(const ptac_table *table, const int64_t *index, int64_t n,
                      char *out);

/* As ptac_rows_gather(), with values[b], one of 256, in place of each byte b. */
void ptac_rows_look_up(const ptac_table *table, const int64_t *index, int64_t n,
                       const float *values, float *out);

#endif
