/*
 * indexing_direct.h - calls of rows by indices that come from C++ alone.
 */
#ifndef PTAC_BIND_TORCH_OVERRIDES_INDEXING_INDEXING_DIRECT_H
#define PTAC_BIND_TORCH_OVERRIDES_INDEXING_INDEXING_DIRECT_H

#include "bind/torch/overrides/direct.h"
#include "bind/torch/overrides/indexing/indexing.h"

/* A call of ours, and what it borrows or owns. */
typedef struct ptac_rows_job {
    ptac_call call;
    ptac_rows rows;
    at_tensors owned; /* dense copies of inputs */
    int64_t sizes[PTAC_MAX_DIMS];
    int n_dims;
} ptac_rows_job;

static inline void ptac_rows_drop(ptac_rows_job *j)
{
    at_drop_tensors(&j->owned);
}

#define PTAC_ROWS_JOB __attribute__((cleanup(ptac_rows_drop))) ptac_rows_job

/* A call on this table, of which nothing else is known. */
void ptac_rows_begin(ptac_rows_job *j, ptac_op op, at_tensor table);

/* Read the table and the index of table[index], whose sizes the job has then. */
ptac_reason ptac_rows_read_index(ptac_rows_job *j, at_tensor index);

/* The x of an addition, of sizes as they have to be. */
ptac_reason ptac_rows_read_x(ptac_rows_job *j, at_tensor x, int n_dims,
                             const int64_t *sizes);

/* Have an input be dense. */
void ptac_rows_take(ptac_rows_job *j, int i, at_tensor tensor);

/*
 * Add to the table itself, unless there is a reason why not. index: NULL where its
 * first column is dense as it is; x: NULL where the call has none. False: stock has to;
 * the reason has been counted.
 */
bool ptac_rows_add_in_place(ptac_rows_job *j, ptac_reason why, at_tensor self,
                            at_tensor index, at_tensor x, ptac_stock_in_place stock,
                            const void *context);

/* A new tensor of these sizes, by a row that has been admitted; or false likewise. */
bool ptac_rows_make(ptac_rows_job *j, const ptac_kernel *row, int n_dims,
                    const int64_t *sizes, ptac_stock_fn stock, const void *context,
                    at_tensor *made);

#define PTAC_ROWS_DIRECT(in_c, of_name, of_overload, of_op, function)                  \
    static ptac_direct direct_##in_c = {                                               \
        .name = of_name,                                                               \
        .overload = of_overload,                                                       \
        .op = PTAC_OP_##of_op,                                                         \
        .symbol = &T.cpu_##in_c,                                                       \
        .typed = (const void *)(uintptr_t)function,                                    \
    };                                                                                 \
    PTAC_DIRECT(direct_##in_c)

#endif
