/*
 * product_entry.c - torch.matmul, torch.mm and x @ y of small matrices, by mm's rows.
 */
#include "bind/python/callpath/entry/entry.h"
#include "bind/torch/rows/gemm.h"
#include "ops/product/product.h"

static PyObject *run_product(PyObject *a, PyObject *b)
{
    ptac_reason uncounted; /* the override of aten::mm sees the call, and counts it */
    ptac_call call;
    ptac_view *left = &call.inputs[0], *right = &call.inputs[1];
    int64_t sizes[2];

    call.op = PTAC_OP_MM;
    call.on = PTAC_ON_CPU;
    call.device = 0;
    call.params = (void *)&ptac_product_is_lean;
    call.n_inputs = 2;
    call.n_outputs = 0;
    ptac_view_of(ptac_borrow(a), left);
    ptac_view_of(ptac_borrow(b), right);
    if (left->n_dims != 2 || right->n_dims != 2 || left->dtype != PTAC_F32 ||
        right->dtype != PTAC_F32 || left->sizes[1] != right->sizes[0] ||
        !ptac_product_is_small(left->sizes[0], right->sizes[1], left->sizes[1]) ||
        ptac_products_are_lowered())
        return NULL;
    sizes[0] = left->sizes[0];
    sizes[1] = right->sizes[1];
    return ptac_entry_run(&call, 2, sizes, &uncounted);
}

static PyObject *try_product(PyObject *a, PyObject *b)
{
    return ptac_chooser_gate(PTAC_OP_MM) == PTAC_TAKE && !ptac_entry_reason(b)
               ? run_product(a, b)
               : NULL;
}

static PyObject *try_matrices(PyObject *const *args, Py_ssize_t n)
{
    return n == 2 ? try_product(args[0], args[1]) : NULL;
}

PTAC_ENTRY(matmul, "torch.matmul", PTAC_N_OPS, try_matrices)
PTAC_ENTRY(matmul_method, "Tensor.matmul", PTAC_N_OPS, try_matrices)
PTAC_ENTRY(matmul_operator, "Tensor.__matmul__", PTAC_N_OPS, try_matrices)
PTAC_ENTRY(mm, "torch.mm", PTAC_N_OPS, try_matrices)
PTAC_ENTRY(mm_method, "Tensor.mm", PTAC_N_OPS, try_matrices)
