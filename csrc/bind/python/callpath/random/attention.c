/*
 * attention.c - the lean call paths to attention with dropout on the CPU, and to its
 * gradients.
 *
 * Torch makes all scores, weights, random numbers and products in memory, one after the
 * other. Here only what is drawn lies there as a whole: by the program's own generator,
 * as torch draws it, for each weight in the order in which weights would lie.
 */
#include "bind/python/callpath/lean.h"

#include "bind/torch/generator.h"
#include "bind/torch/rows/attention.h"
#include "bind/torch/rows/bf16.h"
#include "ops/random/bernoulli.h"

/* The objects that both functions begin and end with. */
typedef struct options {
    PyObject *mask, *p, *is_causal, *scale;
} options;

/* Tensors of a call, of which q, k and v come first. */
static ptac_reason view_tensors(ptac_call *call, PyObject *const *tensors, int n)
{
    if (!ptac_are_plain(tensors, n, n))
        return PTAC_SUBCLASS;
    for (int i = 0; i < n; i++)
        ptac_view_of(ptac_borrow(tensors[i]), &call->inputs[i]);
    call->n_inputs = n;
    return PTAC_TAKE;
}

/* With a place for what is kept, which stays empty; sizes are read where this ends. */
static ptac_reason read_options(ptac_call *call, const options *given,
                                ptac_attention_call *params, uint32_t *dense)
{
    const double p = PyFloat_CheckExact(given->p) ? PyFloat_AsDouble(given->p) : 0;
    const int mask = ptac_attention_mask_input(call->op);
    const bool has_scale = given->scale != Py_None;
    ptac_reason why;

    if (!(p > 0 && p < 1) ||
        (given->is_causal != Py_True && given->is_causal != Py_False) ||
        (has_scale && !PyFloat_CheckExact(given->scale)) ||
        (given->mask != Py_None && given->is_causal == Py_True))
        return PTAC_ARGUMENT;
    params->host.is_causal = given->is_causal == Py_True;
    params->host.scale.has_value = has_scale;
    params->host.scale.value = has_scale ? PyFloat_AsDouble(given->scale) : 0;
    call->inputs[call->n_inputs++] = (ptac_view){.dtype = PTAC_OTHER_DTYPE};
    if (given->mask != Py_None) {
        if (!ptac_are_plain(&given->mask, 1, 1))
            return PTAC_SUBCLASS;
        ptac_view_of(ptac_borrow(given->mask), &call->inputs[mask]);
        call->n_inputs++;
    }
    why = ptac_attention_read(call, params, dense);
    params->is.keep = (float)(1 - p);
    return why;
}

/* What is drawn, by the definition's own order; false where torch has to draw. */
static bool draw(ptac_view *kept, double keep)
{
    PTAC_HELD ptac_held_engine held = ptac_generator_hold(NULL);
    ptac_bernoulli params = {.p = keep, .engine = held.engine};
    const ptac_call call = {
        .op = PTAC_OP_BERNOULLI,
        .n_inputs = 1,
        .n_outputs = 1,
        .n_threads = ptac_the_host.n_threads(),
        .inputs = {*kept},
        .outputs = {*kept},
        .params = &params,
    };
    const ptac_kernel *row = ptac_registry_preferred(PTAC_OP_BERNOULLI, PTAC_EXACT);

    return held.engine && row && row->accepts(&call) == PTAC_TAKE &&
           row->run(&call) == PTAC_OK;
}

typedef struct made {
    at_tensor y, log_sums, kept;
} made;

static void drop_made(made *m)
{
    at_drop_tensor(&m->y);
    at_drop_tensor(&m->log_sums);
    at_drop_tensor(&m->kept);
}

/*
 * Without the interpreter's lock. False for stock, counted: nothing has been drawn
 * then, unless kept is there.
 */
static bool compute(const ptac_kernel *row, ptac_call *call, double keep, made *m)
{
    const ptac_attention_call *params = call->params;
    const ptac_attention *is = &params->is;
    const int64_t sizes[4] = {is->batch, is->heads, is->n_queries, is->n_keys};
    ptac_view *kept = &call->inputs[PTAC_ATTENTION_N_FORWARD];

    call->n_outputs = 2;
    if (ptac_new(PTAC_F32, 4, call->inputs[PTAC_ATTENTION_QUERY].sizes, NULL, &m->y,
                 &call->outputs[PTAC_ATTENTION_RESULT]) ||
        ptac_new(PTAC_F32, 3, sizes, NULL, &m->log_sums,
                 &call->outputs[PTAC_ATTENTION_RESULT_LOG_SUMS]) ||
        ptac_new(PTAC_F32, 4, sizes, NULL, &m->kept, kept)) {
        at_drop_tensor(&m->kept);
        ptac_refuse(call->op, PTAC_MEMORY);
        return false;
    }
    if (!draw(kept, keep)) {
        at_drop_tensor(&m->kept);
        ptac_refuse(call->op, PTAC_ARGUMENT);
        return false;
    }
    return ptac_run(row, call);
}

/* Why not, as far as the thread and autograd say. -1 with an exception set. */
static int surroundings(PyObject *const *tensors, PyObject *mask, ptac_reason *why)
{
    int wants = 0, is_hooked = 0;

    *why = ptac_why_not_lean();
    if (*why || !T.aoti_torch_grad_mode_is_enabled())
        return 0;
    if (mask != Py_None) {
        wants = ptac_requires_grad(mask);
        if (wants)
            *why = PTAC_GRAD;
    }
    for (int i = 0; i < PTAC_ATTENTION_N_FORWARD && wants == 0; i++)
        wants = ptac_requires_grad(tensors[i]);
    if (wants > 0)
        is_hooked = ptac_saving_is_hooked();
    if (is_hooked > 0 && !*why)
        *why = PTAC_HOOKS;
    return wants < 0 || is_hooked < 0 ? -1 : wants;
}

/* (y, log_sums, kept), or (kept,) where only that came to be. */
static PyObject *in_python(made *m, bool is_whole)
{
    PTAC_OWNED PyObject *kept = ptac_wrap(at_give(&m->kept)), *y = NULL, *sums = NULL;

    if (kept && is_whole) {
        y = ptac_wrap(at_give(&m->y));
        sums = y ? ptac_wrap(at_give(&m->log_sums)) : NULL;
    }
    if (!kept || (is_whole && !sums))
        return NULL;
    return is_whole ? PyTuple_Pack(3, y, sums, kept) : PyTuple_Pack(1, kept);
}

/*
 * attention_dropout(q, k, v, mask, p, is_causal, scale, enable_gqa) -> (y, log_sums,
 * kept); (kept,) where torch has to attend with what has been drawn; or None, nothing
 * drawn
 */
PTAC_ARGS(attention_dropout, 8)
{
    const options given = {args[3], args[4], args[5], args[6]};
    __attribute__((cleanup(drop_made))) made m = {NULL};
    ptac_attention_call params = {.host = {.dropout = 0}};
    ptac_call call = {.op = PTAC_OP_ATTENTION_DROPOUT, .params = &params};
    const ptac_kernel *row;
    uint32_t dense;
    ptac_reason why, around;

    PTAC_IN_FLIGHT;
    if (ptac_is_off(call.op))
        Py_RETURN_NONE;
    why = view_tensors(&call, args, PTAC_ATTENTION_N_FORWARD);
    if (!why)
        why = read_options(&call, &given, &params, &dense);
    if (!why) {
        if (surroundings(args, given.mask, &around) < 0)
            return NULL;
        why = around;
    }
    if (!why && params.is.heads != params.is.key_heads && args[7] != Py_True)
        why = PTAC_ARGUMENT;
    if (!why && ptac_shadow_is_on()) /* stock would draw again */
        why = PTAC_ARGUMENT;
    if (why) {
        ptac_refuse(call.op, why);
        Py_RETURN_NONE;
    }
    row = ptac_admit(&call);
    if (!row)
        Py_RETURN_NONE;

    const bool is_whole =
        PTAC_UNLOCKED(compute(row, &call, 1 - PyFloat_AsDouble(given.p), &m));

    if (!m.kept)
        Py_RETURN_NONE;
    return in_python(&m, is_whole);
}

/*
 * The row for the gradients of a call that ours has served, whatever the table says of
 * them alone: torch would have to compute the weights again. NULL: refused, counted.
 */
static const ptac_kernel *admit_gradients(ptac_call *call)
{
    const ptac_kernel *preferred = ptac_registry_preferred(call->op, PTAC_CLOSE), *row;
    ptac_reason why;

    row = ptac_probe(call, &why);
    if (!row && why == PTAC_NOT_FASTER && preferred)
        return ptac_admit_row(call, preferred->name);
    if (!row)
        ptac_refuse(call->op, why);
    return row;
}

/* Each lies in memory in the order of what it is the gradient of. */
static bool compute_gradients(const ptac_kernel *row, ptac_call *call, at_tensor *out)
{
    call->n_outputs = PTAC_ATTENTION_N_FORWARD;
    for (int i = 0; i < call->n_outputs; i++) {
        int64_t strides[4];

        ptac_strides_in_order(&call->inputs[i], strides);
        if (ptac_new(PTAC_F32, 4, call->inputs[i].sizes, strides, &out[i],
                     &call->outputs[i])) {
            ptac_refuse(call->op, PTAC_MEMORY);
            return false;
        }
    }
    return ptac_run(row, call);
}

/*
 * attention_dropout_gradients(q, k, v, y, grad, log_sums, kept, mask, p, is_causal,
 * scale) -> the gradients of q, k and v, or None for torch's operators
 */
PTAC_ARGS(attention_dropout_gradients, 11)
{
    const options given = {args[7], args[8], args[9], args[10]};
    AT_OWNED_ALL at_tensors out = {{NULL}};
    AT_OWNED at_tensor whole = NULL;
    PTAC_OWNED PyObject *of_q = NULL, *of_k = NULL, *of_v = NULL;
    ptac_attention_call params = {.host = {.dropout = 0}};
    ptac_call call = {.op = PTAC_OP_ATTENTION_DROPOUT_BACKWARD, .params = &params};
    ptac_view *kept = &call.inputs[PTAC_ATTENTION_N_BACKWARD];
    ptac_view *grad = &call.inputs[PTAC_ATTENTION_GRAD];
    const ptac_kernel *row;
    uint32_t dense = 0;
    ptac_reason why;

    PTAC_IN_FLIGHT;
    if (ptac_is_off(call.op))
        Py_RETURN_NONE;
    why = view_tensors(&call, args, PTAC_ATTENTION_N_BACKWARD);
    if (!why)
        why = read_options(&call, &given, &params, &dense);
    if (!why && !ptac_are_plain(&args[PTAC_ATTENTION_N_BACKWARD], 1, 1))
        why = PTAC_SUBCLASS;
    if (!why && !ptac_thread_is_plain())
        why = PTAC_MODE;
    if (why) {
        ptac_refuse(call.op, why);
        Py_RETURN_NONE;
    }
    ptac_view_of(ptac_borrow(args[PTAC_ATTENTION_N_BACKWARD]), kept);
    row = admit_gradients(&call);
    if (!row)
        Py_RETURN_NONE;
    if (dense) {
        if (at_contiguous(at_share(ptac_borrow(args[PTAC_ATTENTION_GRAD])), false,
                          &whole))
            Py_RETURN_NONE;
        ptac_view_of(whole, grad);
    }
    if (!PTAC_UNLOCKED(compute_gradients(row, &call, out.at)))
        Py_RETURN_NONE;
    of_q = ptac_wrap(at_give(&out.at[0]));
    of_k = of_q ? ptac_wrap(at_give(&out.at[1])) : NULL;
    of_v = of_k ? ptac_wrap(at_give(&out.at[2])) : NULL;
    return of_v ? PyTuple_Pack(3, of_q, of_k, of_v) : NULL;
}
