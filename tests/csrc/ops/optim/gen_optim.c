/*
 * gen_optim.c - random optimizer steps: a few parameters of odd sizes, every option.
 */
#include "checkrows.h"

#include "ops/optim/step.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    MAX_ITEMS = 3,
    N_STATES = 3,
    MAX_MEMORIES = 2 + N_STATES,
};

/*
 * What lies in test_call.params: the row sees the step, place() the rest.
 *
 * Where a step has sums, the first run, which all others are compared with, does
 * without: parameters and states have the same bits. The sums themselves may differ in
 * the last bits from row to row; tests/adaptive_lr/test_step_sums.py looks at them.
 */
typedef struct random_step {
    ptac_step step;
    ptac_step_item items[MAX_ITEMS];
    int memories[MAX_ITEMS][MAX_MEMORIES]; /* buffers: param, grad, states; or -1 */
    bool has_sums;
    int sums; /* buffer */
    int n_placed;
} random_step;

_Static_assert(sizeof(random_step) <= PARAMS_BYTES, "no room for the params");

/* Around one, with now and then what an optimizer should not meet but may. */
static double random_real(rng *r, bool is_second_moment)
{
    static const double rare[] = {0, 1e-40, 1e-30, 1e30, INFINITY, NAN};

    if (rng_chance(r, 2))
        return rare[rng_below(r, (int64_t)(sizeof rare / sizeof *rare))];

    const double value = (double)rng_between(r, -1000000, 1000000) * 1e-6;

    return is_second_moment ? value * value * 1e-3 : value;
}

static int add_memory(rng *r, test_call *c, buffer_use use, ptac_dtype dtype, int64_t n,
                      bool is_second_moment)
{
    void *content = test_memory(c, use, dtype, n);

    for (int64_t i = 0; i < n; i++) {
        const double value = random_real(r, is_second_moment);

        if (dtype == PTAC_F32)
            ((float *)content)[i] = (float)value;
        else
            ((double *)content)[i] = value;
    }
    return c->n_buffers - 1;
}

static void add_item(rng *r, test_call *c, ptac_dtype dtype, int64_t n, int n_states)
{
    random_step *s = (random_step *)c->params;
    ptac_step_item *item = &s->items[s->step.n_items];
    int *memory = s->memories[s->step.n_items++];

    item->begin = c->call.inputs[0].n_elements;
    item->n = n;
    memory[0] = add_memory(r, c, UPDATES, dtype, item->n, false);
    memory[1] = add_memory(r, c, READS, dtype, item->n, false);
    for (int i = 0; i < N_STATES; i++)
        memory[2 + i] =
            i < n_states ? add_memory(r, c, UPDATES, dtype, item->n, i > 0) : -1;
    item->is_first = n_states == 1 && rng_chance(r, 30);
    item->step_size_neg = -1e-3 * (double)rng_between(r, 1, 20);
    item->bias_correction2_sqrt = 1e-2 * (double)rng_between(r, 1, 100);
    item->bias_correction2 = 1e-2 * (double)rng_between(r, 1, 100);
    item->grad_size_neg = -1e-4 * (double)rng_between(r, 1, 20);
    c->call.inputs[0].n_elements += item->n;
}

static int64_t random_size(rng *r)
{
    return rng_chance(r, 3) ? rng_between(r, 30000, 40000) : rng_between(r, 0, 70);
}

static void make_step(rng *r, test_call *c, ptac_op op, int n_states)
{
    const ptac_dtype dtype = rng_chance(r, 70) ? PTAC_F32 : PTAC_F64;
    const int n_items = (int)rng_between(r, 1, MAX_ITEMS);
    random_step *s = (random_step *)c->params;

    c->call.op = op;
    c->call.inputs[0].dtype = dtype; /* stands for all parameters, and is no tensor */
    for (int i = 0; i < n_items; i++)
        add_item(r, c, dtype, random_size(r), n_states);
    s->has_sums = rng_chance(r, 33);
    if (s->has_sums) {
        s->sums = c->n_buffers;
        test_memory(c, SCRATCH, PTAC_F64, ptac_step_sums(c->call.inputs[0].n_elements));
    }
    snprintf(c->note, sizeof c->note, "%s, %d parameters, %lld elements, %d states%s",
             ptac_dtype_name(dtype), n_items, (long long)c->call.inputs[0].n_elements,
             n_states, s->has_sums ? ", sums" : "");
}

static void place(test_call *c)
{
    random_step *s = (random_step *)c->params;

    s->step.items = s->items;
    s->step.sums = s->has_sums && s->n_placed ? c->buffers[s->sums].data : NULL;
    s->n_placed++;
    for (int64_t i = 0; i < s->step.n_items; i++) {
        const int *memory = s->memories[i];

        s->items[i].param = c->buffers[memory[0]].data;
        s->items[i].grad = c->buffers[memory[1]].data;
        for (int j = 0; j < N_STATES; j++)
            s->items[i].state[j] =
                memory[2 + j] < 0 ? NULL : c->buffers[memory[2 + j]].data;
    }
}

/* One of the first n_ways of torch's. */
static void make_way(rng *r, test_call *c, ptac_step_way n_ways)
{
    static const char *const names[] = {"loop", "foreach", "fused"};
    random_step *s = (random_step *)c->params;
    const size_t used = strlen(c->note);

    s->step.way = (ptac_step_way)rng_below(r, n_ways);
    snprintf(c->note + used, sizeof c->note - used, ", %s", names[s->step.way]);
}

static void make_sgd(rng *r, test_call *c)
{
    ptac_sgd *sgd = &((random_step *)c->params)->step.sgd;
    const bool has_momentum = rng_chance(r, 70);

    *sgd = (ptac_sgd){
        .lr_neg = -1e-3 * (double)rng_between(r, 0, 20),
        .momentum = has_momentum ? 0.9 : 0,
        .one_minus_dampening = rng_chance(r, 50) ? 1 : 0.7,
        .weight_decay = rng_chance(r, 50) ? 0 : 0.01,
        .nesterov = has_momentum && rng_chance(r, 50),
        .maximize = rng_chance(r, 30),
    };
    make_step(r, c, PTAC_OP_SGD_STEP, has_momentum);
    make_way(r, c, PTAC_STEP_WAYS);
}

static void make_adam_like(rng *r, test_call *c, ptac_op op)
{
    ptac_adam *adam = &((random_step *)c->params)->step.adam;
    const bool is_decoupled = op == PTAC_OP_ADAMW_STEP;
    const double decay = rng_chance(r, 50) ? 0 : 0.01;

    *adam = (ptac_adam){
        .one_minus_beta1 = rng_chance(r, 70) ? 1 - 0.9 : 1 - 0.3,
        .beta2 = 0.999,
        .one_minus_beta2 = 1 - 0.999,
        .eps = 1e-8,
        .weight_decay = is_decoupled ? 0 : decay,
        .decay_factor = is_decoupled ? 1 - 1e-3 * decay : 1,
        .amsgrad = rng_chance(r, 40),
        .maximize = rng_chance(r, 30),
    };
    make_step(r, c, op, adam->amsgrad ? 3 : 2);
    make_way(r, c, PTAC_STEP_WAYS);
}

static void make_adam(rng *r, test_call *c)
{
    make_adam_like(r, c, PTAC_OP_ADAM_STEP);
}

static void make_adamw(rng *r, test_call *c)
{
    make_adam_like(r, c, PTAC_OP_ADAMW_STEP);
}

static void make_adadelta(rng *r, test_call *c)
{
    ((random_step *)c->params)->step.adadelta = (ptac_adadelta){
        .rho = 0.9,
        .one_minus_rho = 1 - 0.9,
        .eps = 1e-6,
        .lr_neg = -1e-2 * (double)rng_between(r, 0, 100),
        .weight_decay = rng_chance(r, 50) ? 0 : 0.01,
        .maximize = rng_chance(r, 30),
    };
    make_step(r, c, PTAC_OP_ADADELTA_STEP, 2);
    make_way(r, c, PTAC_STEP_FUSED);
}

static void make_rmsprop(rng *r, test_call *c)
{
    ptac_rmsprop *rmsprop = &((random_step *)c->params)->step.rmsprop;
    const double alpha = rng_chance(r, 70) ? 0.99 : 0.3;

    *rmsprop = (ptac_rmsprop){
        .alpha = alpha,
        .one_minus_alpha = 1 - alpha,
        .eps = 1e-8,
        .lr_neg = -1e-3 * (double)rng_between(r, 0, 20),
        .weight_decay = rng_chance(r, 50) ? 0 : 0.01,
        .momentum = rng_chance(r, 50) ? 0 : 0.9,
        .centered = rng_chance(r, 50),
        .maximize = rng_chance(r, 30),
    };
    make_step(r, c, PTAC_OP_RMSPROP_STEP, 3);
    make_way(r, c, PTAC_STEP_FUSED);
}

static void make_adagrad(rng *r, test_call *c)
{
    ((random_step *)c->params)->step.adagrad = (ptac_adagrad){
        .eps = 1e-10,
        .weight_decay = rng_chance(r, 50) ? 0 : 0.01,
        .maximize = rng_chance(r, 30),
    };
    make_step(r, c, PTAC_OP_ADAGRAD_STEP, 1);
    make_way(r, c, PTAC_STEP_WAYS);
}

static void make_nadam(rng *r, test_call *c)
{
    const double decay = rng_chance(r, 50) ? 0 : 0.01;
    const bool is_decoupled = rng_chance(r, 50);

    ((random_step *)c->params)->step.nadam = (ptac_nadam){
        .one_minus_beta1 = rng_chance(r, 70) ? 1 - 0.9 : 1 - 0.3,
        .beta2 = 0.999,
        .one_minus_beta2 = 1 - 0.999,
        .eps = 1e-8,
        .weight_decay = is_decoupled ? 0 : decay,
        .decay_factor = is_decoupled ? 1 - 1e-3 * decay : 1,
        .maximize = rng_chance(r, 30),
    };
    make_step(r, c, PTAC_OP_NADAM_STEP, 2);
    make_way(r, c, PTAC_STEP_FUSED);
}

/* A weight and a bias in float32, or in float64. */
static bool typical_step(int i, rng *r, test_call *c, ptac_op op, int n_states)
{
    const ptac_dtype dtype = i == 0 ? PTAC_F32 : PTAC_F64;

    if (i > 1)
        return false;
    c->call.op = op;
    c->call.inputs[0].dtype = dtype;
    add_item(r, c, dtype, 128 * 256, n_states);
    add_item(r, c, dtype, 128, n_states);
    snprintf(c->note, sizeof c->note, "%s, a weight and a bias, %d states",
             ptac_dtype_name(dtype), n_states);
    return true;
}

static bool typical_sgd(int i, rng *r, test_call *c)
{
    ((random_step *)c->params)->step.sgd = (ptac_sgd){
        .lr_neg = -0.1,
        .momentum = 0.9,
        .one_minus_dampening = 1,
        .weight_decay = 1e-4,
    };
    return typical_step(i, r, c, PTAC_OP_SGD_STEP, 1);
}

static bool typical_adam_like(int i, rng *r, test_call *c, ptac_op op)
{
    ((random_step *)c->params)->step.adam = (ptac_adam){
        .one_minus_beta1 = 1 - 0.9,
        .beta2 = 0.999,
        .one_minus_beta2 = 1 - 0.999,
        .eps = 1e-8,
        .decay_factor = op == PTAC_OP_ADAMW_STEP ? 1 - 1e-5 : 1,
    };
    return typical_step(i, r, c, op, 2);
}

static bool typical_adam(int i, rng *r, test_call *c)
{
    return typical_adam_like(i, r, c, PTAC_OP_ADAM_STEP);
}

static bool typical_adamw(int i, rng *r, test_call *c)
{
    return typical_adam_like(i, r, c, PTAC_OP_ADAMW_STEP);
}

/*
 * Rows of CUDA follow torch's multi-tensor kernels. Of SGD these round as the CPU does.
 * Of Adam they square the gradient first and divide before they multiply: the squares
 * differ by 2 roundings, the change of a parameter by 4, and adding it rounds once
 * more on either side.
 */
GENERATOR(sgd, .op = PTAC_OP_SGD_STEP, .make = make_sgd, .place = place, .roundings = 1,
          .typical = typical_sgd)

GENERATOR(adam, .op = PTAC_OP_ADAM_STEP, .make = make_adam, .place = place,
          .roundings = 8, .typical = typical_adam)

GENERATOR(adamw, .op = PTAC_OP_ADAMW_STEP, .make = make_adamw, .place = place,
          .roundings = 8, .typical = typical_adamw)

GENERATOR(adadelta, .op = PTAC_OP_ADADELTA_STEP, .make = make_adadelta, .place = place)

GENERATOR(rmsprop, .op = PTAC_OP_RMSPROP_STEP, .make = make_rmsprop, .place = place)

GENERATOR(adagrad, .op = PTAC_OP_ADAGRAD_STEP, .make = make_adagrad, .place = place)

GENERATOR(nadam, .op = PTAC_OP_NADAM_STEP, .make = make_nadam, .place = place)
