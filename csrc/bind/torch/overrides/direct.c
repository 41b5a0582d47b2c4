/*
 * direct.c - C++ calls of operators into the dispatcher, and out; calls in place.
 */
#include "bind/torch/overrides/direct.h"

#include "bind/torch/overrides/override.h"

static ptac_direct *first;

void ptac_direct_announce(ptac_direct *direct)
{
    direct->next = first;
    first = direct;
}

const ptac_direct *ptac_direct_first(void)
{
    return first;
}

static void set(uint64_t *word, const void *typed)
{
    __atomic_store_n(word, (uint64_t)(uintptr_t)typed, __ATOMIC_RELEASE);
}

/* What torch has written anew is no longer ours. */
static void take_out(ptac_direct *d)
{
    uint64_t *const words[] = {d->words.called, d->words.registered};

    for (int i = 0; i < 2; i++)
        if (words[i] && *words[i] == (uint64_t)(uintptr_t)d->typed)
            set(words[i], (const void *)(uintptr_t)d->torchs);
    d->words = (at_typed_words){0};
}

static void put_in(ptac_direct *d)
{
    d->words = at_entry_typed_words(d->name, d->overload);
    if (!d->words.called)
        return;
    d->torchs = *d->words.called;
    if (d->words.registered)
        set(d->words.registered, d->typed);
    set(d->words.called, d->typed);
}

void ptac_direct_install(const ptac_op_set *wanted)
{
    for (ptac_direct *d = first; d; d = d->next) {
        if (d->words.called && *d->words.called != (uint64_t)(uintptr_t)d->typed)
            take_out(d); /* others came, or left */
        if (!d->words.called && ptac_op_set_has(wanted, d->op) &&
            ptac_torch_has(d->symbol) && (!d->needs || ptac_torch_has(d->needs)))
            put_in(d);
    }
}

void ptac_direct_remove(const ptac_op_set *unwanted)
{
    for (ptac_direct *d = first; d; d = d->next)
        if (d->words.called && ptac_op_set_has(unwanted, d->op))
            take_out(d);
}

ptac_op_set ptac_direct_installed(void)
{
    ptac_op_set ops = {{0}};

    for (const ptac_direct *d = first; d; d = d->next)
        if (d->words.called)
            ptac_op_set_add(&ops, d->op);
    return ops;
}

/* A dense copy, or NULL. */
static at_tensor copy_of(at_tensor self, const ptac_view *view)
{
    int32_t dtype = -1;
    at_tensor copy = NULL;

    T.aoti_torch_get_dtype(self, &dtype);
    if (!T.aoti_torch_copy_ || view->n_dims > PTAC_MAX_DIMS ||
        at_new(dtype, view->n_dims, view->sizes, &copy))
        return NULL;
    if (T.aoti_torch_copy_(copy, self, 0))
        at_drop_tensor(&copy);
    return copy;
}

/* Stock's own kernel may call others by the dispatcher, which are to be stock's too. */
static void call_stock(at_tensor self, ptac_stock_in_place stock, const void *context)
{
    PTAC_MUTED;

    stock(self, context);
}

bool ptac_run_in_place(const ptac_kernel *row, const ptac_call *call, at_tensor self,
                       ptac_stock_in_place stock, const void *context)
{
    AT_OWNED at_tensor expected = NULL;
    AT_OWNED at_tensor ours = NULL;
    ptac_view views[2];

    if (ptac_shadow_due(call->op))
        expected = copy_of(self, &call->outputs[0]);
    if (!ptac_run(row, call))
        return false;
    if (!expected)
        return true;
    call_stock(expected, stock, context);
    ours = at_dense(self, &call->outputs[0], false);
    ptac_view_of(ours, &views[0]);
    ptac_view_of(expected, &views[1]);
    if (!ptac_shadow_agrees(row, &views[0], &views[1], 1, 0, 0))
        at_must(T.aoti_torch_copy_(self, expected, 0), "could not copy stock's result");
    return true;
}
