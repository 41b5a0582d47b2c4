/*
 * prepared.c - reading a call for the plan that will run it.
 */
#include "bind/torch/overrides/prepared.h"

/* Whether a row could be given them as they lie. */
static bool are_dense(const ptac_prepared *p)
{
    for (int i = 0; i < p->call.n_inputs; i++) {
        const ptac_view *view = &p->call.inputs[i];

        if ((p->outputs.dense >> i & 1) && view->sizes &&
            !(p->outputs.channels_last ? ptac_view_is_channels_last(view)
                                       : ptac_view_is_contiguous(view)))
            return false;
    }
    return true;
}

ptac_reason ptac_prepare_call(ptac_prepared *p)
{
    const ptac_override *override = p->args.of;
    ptac_reason why;

    p->args.on = PTAC_ON_CPU;
    p->call = (ptac_call){.params = p->params};
    /* Where there are several calls, or ways of their own, or views do not tell all. */
    if (!override->read || override->serve || override->by_handles)
        return PTAC_ARGUMENT;
    p->call.op = override->op_of ? override->op_of(&p->args) : override->op;
    ptac_override_inputs(&p->args, &p->call);
    ptac_override_expect(&p->call, override->n_outputs, &p->outputs);
    p->outputs.made = NULL;
    why = override->read(&p->args, &p->call, p->params, &p->outputs);
    p->call.n_outputs = p->outputs.n;
    return why ? why : are_dense(p) ? PTAC_TAKE : PTAC_LAYOUT;
}

static at_error make_work(ptac_prepared *p)
{
    for (int i = p->args.of->n_outputs; i < p->outputs.n; i++)
        if (ptac_override_output(&p->outputs, i, &p->call, &p->work.at[i]))
            return 1;
    return 0;
}

ptac_reason ptac_prepare_row(ptac_prepared *p)
{
    const ptac_override *override = p->args.of;
    ptac_reason why = PTAC_TAKE;

    if (override->admit)
        p->row = override->admit(&p->call);
    else
        p->row = ptac_probe(&p->call, &why);
    if (!p->row)
        return why ? why : PTAC_NOT_FASTER;
    if (p->row->in_bf16)
        return PTAC_PRECISION; /* makes its outputs itself */
    return make_work(p) ? PTAC_MEMORY : PTAC_TAKE;
}

void ptac_prepared_drop(ptac_prepared *p)
{
    at_drop_tensors(&p->work);
}
