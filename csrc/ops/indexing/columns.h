/*
 * columns.h - index and index_put of dimensions behind the first: x[:, i, j].
 *
 *   index       inputs: table [n_rows, width], places [n]. outputs: y [n_rows, n];
 *               y[b, k] = table[b, places[k]]
 *   index_put   inputs: table, places, x [n_rows, n]. outputs: the table itself;
 *               table[b, places[k]] += x[b, k] for k = 0, 1 ...
 *
 * Where a call's ptac_rows are of columns. Places are the caller's own, of int64, and
 * below the width.
 */
#ifndef PTAC_OPS_INDEXING_COLUMNS_H
#define PTAC_OPS_INDEXING_COLUMNS_H

#include "ops/indexing/indexing.h"

ptac_status ptac_columns_pick(const ptac_call *call);
ptac_status ptac_columns_add(const ptac_call *call);

#endif
