/*
 * bernoulli.c - aten::bernoulli_.float, which dropout of all kinds draws by.
 *
 * A generator is nothing that the C ABI can box, so that only C++ calls come here. What
 * is boxed, such as a call from a dispatch mode, is torch's.
 */
#include "bind/torch/overrides/direct.h"

#include "bind/torch/generator.h"
#include "ops/random/bernoulli.h"

#include <stdlib.h>
#include <string.h>

/* Torch's own kernel. The functor is its; an optional generator goes by its address. */
typedef at_tensor (*kernel)(void *functor, uint64_t keys, at_tensor self, double p,
                            const at_optional_generator *generator);

static ptac_direct bernoulli;

/* A shadow check: what ours drew, and the engine before and after. */
typedef struct shadow {
    float *drawn; /* NULL: none is due */
    const ptac_kernel *row;
    ptac_engine before, after;
    int64_t t_ns;
} shadow;

static void drop_shadow(shadow *check)
{
    free(check->drawn);
}

static void *generator_of(const at_optional_generator *generator)
{
    return generator->has_value ? generator->impl : NULL;
}

/* Fewer than any row takes, and nothing else sends them to stock. */
static bool are_too_few(at_tensor self)
{
    int64_t n = 0;

    if (ptac_chooser_gate(PTAC_OP_BERNOULLI) || ptac_thread_is_disabled())
        return false;
    T.aoti_torch_get_numel(self, &n);
    return n < ptac_chooser_least_work(PTAC_OP_BERNOULLI);
}

static ptac_reason read(at_tensor self, double p, ptac_view *view)
{
    if (are_too_few(self))
        return PTAC_NOT_FASTER;
    ptac_view_of(self, view);
    if (view->dtype != PTAC_F32)
        return PTAC_DTYPE;
    if (view->n_elements == 0)
        return PTAC_EMPTY;
    if (!ptac_view_is_contiguous(view))
        return PTAC_LAYOUT;
    return p >= 0 && p <= 1 ? PTAC_TAKE : PTAC_ARGUMENT;
}

/* Draw into memory of our own, and leave the engine as it was: stock draws again. */
static void draw_aside(shadow *check, ptac_call *call, ptac_engine *engine)
{
    const size_t bytes = (size_t)call->inputs[0].n_elements * sizeof(float);
    const int64_t t_start = ptac_now_ns();

    check->drawn = malloc(bytes);
    if (!check->drawn)
        return;
    check->before = *engine;
    call->outputs[0].data = check->drawn;
    if (ptac_run(check->row, call)) {
        check->after = *engine;
        *engine = check->before;
        check->t_ns = ptac_now_ns() - t_start;
    } else {
        drop_shadow(check);
        check->drawn = NULL;
    }
}

/* False: stock has to draw; counted, where no check is due. */
static bool serve(at_tensor self, double p, const at_optional_generator *generator,
                  shadow *check)
{
    ptac_bernoulli params = {.p = p};
    ptac_call call = {
        .op = PTAC_OP_BERNOULLI, .n_inputs = 1, .n_outputs = 1, .params = &params};
    const ptac_reason why = read(self, p, &call.inputs[0]);
    const ptac_kernel *row;
    PTAC_HELD ptac_held_engine held = {NULL, NULL};

    if (why)
        ptac_refuse(call.op, why);
    row = why ? NULL : ptac_admit(&call);
    if (!row)
        return false;
    held = ptac_generator_hold(generator_of(generator));
    if (!held.engine) {
        ptac_refuse(call.op, PTAC_ARGUMENT);
        return false;
    }
    params.engine = held.engine;
    call.outputs[0] = call.inputs[0];
    if (!ptac_shadow_due(call.op))
        return ptac_run(row, &call);
    check->row = row;
    draw_aside(check, &call, held.engine);
    return false;
}

static ptac_view whole(ptac_engine *engine)
{
    static const int64_t n = sizeof *engine / sizeof(int64_t), one = 1;

    return (ptac_view){.data = engine,
                       .sizes = &n,
                       .strides = &one,
                       .n_elements = n,
                       .n_dims = 1,
                       .dtype = PTAC_I64};
}

/* Whether ours left the engine where as many draws by the definition leave it. */
static bool is_as_defined(const shadow *check, int64_t n)
{
    ptac_engine engine = check->before;

    for (int64_t i = 0; i < 2 * n; i++)
        ptac_engine_draw(&engine);
    return engine.left == check->after.left && engine.next == check->after.next &&
           memcmp(engine.words, check->after.words, sizeof engine.words) == 0;
}

/*
 * Compare with what stock has drawn. Where another thread has drawn between ours and
 * stock, as the engine tells, there is nothing to compare.
 */
static void settle(shadow *check, at_tensor self, void *generator, int64_t t_stock_ns)
{
    ptac_view numbers[2], engines[2];
    ptac_engine now;
    PTAC_HELD ptac_held_engine held = ptac_generator_hold(generator);

    if (!held.engine)
        return;
    now = *held.engine;
    ptac_view_of(self, &numbers[1]);
    numbers[0] = numbers[1];
    numbers[0].data = check->drawn;
    engines[0] = whole(&check->after);
    engines[1] = whole(&now);
    if (memcmp(&check->after, &now, sizeof now) != 0) {
        if (!is_as_defined(check, numbers[0].n_elements))
            ptac_shadow_agrees(check->row, &engines[0], &engines[1], 1, 0, 0);
        return;
    }
    ptac_shadow_agrees(check->row, &numbers[0], &numbers[1], 1, check->t_ns,
                       t_stock_ns);
}

/* The dispatcher's call. What generator points to is ours, and so torch's kernel's. */
static at_tensor typed(void *functor, uint64_t keys, at_tensor self, double p,
                       const at_optional_generator *generator)
{
    PTAC_IN_FLIGHT;
    __attribute__((cleanup(drop_shadow))) shadow check = {NULL};
    const kernel stock = (kernel)(uintptr_t)bernoulli.torchs;
    void *drawn_from = generator_of(generator);
    int64_t t_start;
    at_tensor drawn;

    if (!ptac_is_off(PTAC_OP_BERNOULLI) && serve(self, p, generator, &check))
        return self;
    if (!check.drawn)
        return stock(functor, keys, self, p, generator);
    t_start = ptac_now_ns();
    drawn = stock(functor, keys, self, p, generator);
    settle(&check, self, drawn_from, ptac_now_ns() - t_start);
    return drawn;
}

static ptac_direct bernoulli = {
    .name = "bernoulli_",
    .overload = "float",
    .op = PTAC_OP_BERNOULLI,
    .symbol = &T.default_cpu_generator,
    .typed = (const void *)(uintptr_t)typed,
};
PTAC_DIRECT(bernoulli)
