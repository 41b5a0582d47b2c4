/*
 * gen_indexing.c - random calls of what finds rows by indices, or adds rows up.
 */
#include "checkrows.h"
#include "ops/indexing/indexing.h"

#include <stdio.h>

static ptac_rows *params_of(test_call *c)
{
    return (ptac_rows *)c->params;
}

static void set_sizes(rng *r, test_call *c, ptac_op op)
{
    ptac_rows *p = params_of(c);

    c->call.op = op;
    p->n_rows = rng_length(r, 300);
    p->width = RNG_PICK(r, 1, 1, 2, 3, 4, 8, 16, 32, 64, rng_length(r, 150));
    p->n = rng_chance(r, 10) ? 3000 : rng_length(r, 700);
    p->stride = p->x_stride = p->width;
    p->padding = PTAC_NO_ROW;
    p->has_32_bits = rng_chance(r, 30);
    snprintf(c->note, sizeof c->note, "%lld rows of %lld, %lld indices of %d bits",
             (long long)p->n_rows, (long long)p->width, (long long)p->n,
             p->has_32_bits ? 32 : 64);
}

static void *add_integers(test_call *c, int64_t n)
{
    return test_input(c, params_of(c)->has_32_bits ? PTAC_F32 : PTAC_I64, 1, &n, false);
}

static void set_integer(const ptac_rows *p, void *memory, int64_t i, int64_t value)
{
    if (p->has_32_bits)
        ((int32_t *)memory)[i] = (int32_t)value;
    else
        ((int64_t *)memory)[i] = value;
}

static void add_index(rng *r, test_call *c, bool wraps)
{
    ptac_rows *p = params_of(c);
    const int64_t used = rng_chance(r, 30) ? rng_between(r, 1, p->n_rows) : p->n_rows;
    void *index = add_integers(c, p->n);

    p->wraps = wraps;
    for (int64_t i = 0; i < p->n; i++)
        set_integer(p, index, i,
                    rng_below(r, used) - (wraps && rng_chance(r, 30) ? p->n_rows : 0));
    if (rng_chance(r, 5)) {
        set_integer(p, index, rng_below(r, p->n),
                    RNG_PICK(r, p->n_rows, -p->n_rows - 1, INT32_MAX, INT32_MIN));
        c->must_be_given_back = true;
    }
}

static void add_matrix(rng *r, test_call *c, int64_t n)
{
    const ptac_rows *p = params_of(c);
    const int64_t sizes[] = {n, p->width};

    fill_reals(r, PTAC_F32, test_input(c, PTAC_F32, 2, sizes, false), n * p->width);
}

/* Of the same columns of each row; with x, added to the table itself. */
static void make_columns(rng *r, test_call *c, ptac_op op)
{
    ptac_rows *p = params_of(c);
    int64_t *places;

    set_sizes(r, c, op);
    p->has_32_bits = false;
    p->of_columns = true;
    p->n = rng_length(r, 90);
    add_matrix(r, c, p->n_rows);
    places = add_integers(c, p->n);
    for (int64_t k = 0; k < p->n; k++)
        places[k] = rng_below(r, p->width);
    if (op == PTAC_OP_INDEX) {
        test_output(c, PTAC_F32, 2, (const int64_t[]){p->n_rows, p->n}, false);
        return;
    }
    fill_reals(r, PTAC_F32,
               test_input(c, PTAC_F32, 2, (const int64_t[]){p->n_rows, p->n}, false),
               p->n_rows * p->n);
    test_output_in_place(c, PTAC_ROWS_TABLE);
}

static void make_select(rng *r, test_call *c, ptac_op op)
{
    const ptac_rows *p = params_of(c);

    if (op == PTAC_OP_INDEX && rng_chance(r, 30)) {
        make_columns(r, c, op);
        return;
    }
    set_sizes(r, c, op);
    add_matrix(r, c, p->n_rows);
    add_index(r, c, op == PTAC_OP_INDEX);
    test_output(c, PTAC_F32, 2, (const int64_t[]){p->n, p->width}, false);
}

static void make_add(rng *r, test_call *c, ptac_op op)
{
    const ptac_rows *p = params_of(c);

    if (op == PTAC_OP_INDEX_PUT && rng_chance(r, 30)) {
        make_columns(r, c, op);
        return;
    }
    set_sizes(r, c, op);
    add_matrix(r, c, p->n_rows);
    add_index(r, c, op == PTAC_OP_INDEX_PUT);
    add_matrix(r, c, p->n);
    if (rng_chance(r, 70))
        test_output_in_place(c, PTAC_ROWS_TABLE);
    else
        test_output(c, PTAC_F32, 2, (const int64_t[]){p->n_rows, p->width}, false);
}

static void make_gradient(rng *r, test_call *c, ptac_op op)
{
    ptac_rows *p = params_of(c);

    set_sizes(r, c, op);
    p->x_rows = op == PTAC_OP_EMBEDDING_BACKWARD ? p->n : rng_between(r, 1, p->n);
    if (rng_chance(r, 30))
        p->padding = rng_below(r, p->n_rows);
    add_matrix(r, c, p->x_rows);
    add_index(r, c, false);
    if (op == PTAC_OP_EMBEDDING_BAG_BACKWARD) {
        void *source = add_integers(c, p->n);
        int64_t *order = test_input(c, PTAC_I64, 1, &p->n, false);

        for (int64_t i = 0; i < p->n; i++) {
            set_integer(p, source, i, rng_below(r, p->x_rows));
            order[i] = rng_below(r, p->n);
        }
        if (rng_chance(r, 5)) {
            order[rng_below(r, p->n)] = RNG_PICK(r, -1, p->n);
            c->must_be_given_back = true;
        }
        if (rng_chance(r, 50))
            fill_reals(r, PTAC_F32, test_input(c, PTAC_F32, 1, &p->x_rows, false),
                       p->x_rows);
    }
    test_output(c, PTAC_F32, 2, (const int64_t[]){p->n_rows, p->width}, false);
}

/* Copies have the bits of what they copy; sums of NaNs may have either's. */
#define OPERATOR(id, function, ...)                                                    \
    static void make_##id(rng *r, test_call *c)                                        \
    {                                                                                  \
        function(r, c, PTAC_OP_##id);                                                  \
    }                                                                                  \
    GENERATOR(of_##id, .op = PTAC_OP_##id, .make = make_##id, ##__VA_ARGS__)

OPERATOR(INDEX_SELECT, make_select, .nan_bits = 1u << PTAC_F32)
OPERATOR(INDEX, make_select, .nan_bits = 1u << PTAC_F32)
OPERATOR(GATHER, make_select, .nan_bits = 1u << PTAC_F32)
OPERATOR(INDEX_ADD, make_add)
OPERATOR(SCATTER_ADD, make_add)
OPERATOR(INDEX_PUT, make_add)
OPERATOR(EMBEDDING_BACKWARD, make_gradient)
OPERATOR(EMBEDDING_BAG_BACKWARD, make_gradient)
