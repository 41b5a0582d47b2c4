/*
 * mlp_units.c - two layers at once on an emulated device: results, how many products
 * and launches these take, and faults that must not go unseen.
 */
#include "matrices.h"
#include "ops/linear/cuda/mlp_cuda.h"
#include "ops/linear/linear_act.h"
#include "unit.h"

#include "emulated_lt.h"
#include "emulator.h"

#include <math.h>
#include <string.h>

static const uint32_t nothing[] = {0};
static const uint32_t slopes[] = {PTAC_LT_EPI_DRELU_BGRAD, PTAC_LT_EPI_DGELU_BGRAD,
                                  PTAC_LT_EPI_DRELU,       PTAC_LT_EPI_DGELU,
                                  PTAC_LT_EPI_BGRADB,      0};

typedef struct block {
    ptac_dtype dtype;
    ptac_act act;
    int64_t m, k, hidden, n;
    matrix x, w1, w2, b1, b2, h, saved, y;
    matrix gy, gz, gx, gw1, gw2, gb1, gb2;
    ptac_call call;
    ptac_lt_place place;
    ptac_mlp mlp;
    ptac_mlp_grads grads;
} block;

static matrix dense(ptac_dtype dtype, int64_t n_rows, int64_t n_cols)
{
    return matrix_new(dtype, n_rows, n_cols, n_cols, 0);
}

static void block_fill(block *b, rng *r)
{
    matrix_fill(r, &b->x, 0.25);
    matrix_fill(r, &b->w1, 0.25);
    matrix_fill(r, &b->b1, 0.0625);
    matrix_fill(r, &b->w2, 0.25);
    matrix_fill(r, &b->b2, 0.5);
    matrix_fill(r, &b->gy, 0.5);
}

static void block_point(block *b)
{
    const bool saves = ptac_lt_saves(b->act);
    const int64_t ld = ptac_lt_saved_ld(b->act, b->hidden);

    b->call = (ptac_call){.stream = the_device.stream};
    b->place = (ptac_lt_place){
        .call = &b->call, .dtype = b->dtype, .workspace = the_workspace};
    b->mlp = (ptac_mlp){
        .m = b->m,
        .k = b->k,
        .hidden = b->hidden,
        .n = b->n,
        .act = b->act,
        .x = lt_of(&b->x),
        .w1 = lt_of(&b->w1),
        .w2 = lt_of(&b->w2),
        .b1 = b->b1.data,
        .b2 = b->b2.data,
        .h = lt_of(&b->h),
        .saved = {saves ? b->saved.data : NULL, ld},
        .y = lt_of(&b->y),
    };
    b->grads = (ptac_mlp_grads){
        .gy = lt_of(&b->gy),
        .gz = lt_of(&b->gz),
        .gx = lt_of(&b->gx),
        .gw1 = lt_of(&b->gw1),
        .gw2 = lt_of(&b->gw2),
        .gb1 = b->gb1.data,
        .gb2 = b->gb2.data,
    };
}

static void block_make(block *b, rng *r)
{
    const ptac_dtype t = b->dtype;
    const int64_t ld = ptac_lt_saved_ld(b->act, b->hidden);

    b->x = matrix_new(t, b->m, b->k, b->k + 3, 1);
    b->w1 = dense(t, b->hidden, b->k);
    b->w2 = dense(t, b->n, b->hidden);
    b->b1 = dense(t, 1, b->hidden);
    b->b2 = dense(t, 1, b->n);
    b->h = dense(t, b->m, b->hidden);
    /* A row more than there are, for the faults below. */
    b->saved = b->act == PTAC_ACT_RELU
                   ? matrix_new(PTAC_OTHER_DTYPE, b->m + 1, ld / 8, ld / 8, 0)
                   : matrix_new(t, b->m, b->hidden, ld, 0);
    b->y = dense(t, b->m, b->n);
    b->gy = matrix_new(t, b->m, b->n, b->n + 5, 0);
    b->gz = dense(t, b->m, b->hidden);
    b->gx = dense(t, b->m, b->k);
    b->gw1 = dense(t, b->hidden, b->k);
    b->gw2 = dense(t, b->n, b->hidden);
    b->gb1 = dense(t, 1, b->hidden);
    b->gb2 = dense(t, 1, b->n);
    block_fill(b, r);
    block_point(b);
}

static void block_drop(block *b)
{
    matrix *all[] = {&b->x,  &b->w1,    &b->w2,  &b->b1,  &b->b2,
                     &b->h,  &b->saved, &b->y,   &b->gy,  &b->gz,
                     &b->gx, &b->gw1,   &b->gw2, &b->gb1, &b->gb2};

    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        matrix_drop(all[i]);
}

/* Whether m is a product of what the device has rounded before, within 8 roundings. */
static bool is_product(const matrix *m, const exact *a, bool ta, const exact *b,
                       bool tb, const matrix *bias, const char *name)
{
    exact expected = exact_product(a, ta, b, tb, false);
    exact size = exact_product(a, ta, b, tb, true);
    bool near;

    for (int64_t i = 0; bias && i < m->n_rows * m->n_cols; i++)
        expected.at[i] += matrix_at(bias, 0, i % m->n_cols);
    near = matrix_is_near(m, &expected, &size, 8, name);
    exact_drop(&expected);
    exact_drop(&size);
    return near;
}

/* z of the hidden layer, which is exact; and the gradient before the activation. */
static bool hidden_is_right(const block *b, exact *gz)
{
    exact x = exact_of(&b->x), w1 = exact_of(&b->w1), w2 = exact_of(&b->w2);
    exact gy = exact_of(&b->gy), z = exact_product(&x, false, &w1, true, false);
    exact h = exact_new(b->m, b->hidden);
    bool right;

    *gz = exact_product(&gy, false, &w2, false, false);
    for (int64_t i = 0; i < b->m * b->hidden; i++) {
        const double sum = z.at[i] + matrix_at(&b->b1, 0, i % b->hidden);

        h.at[i] = exact_act(sum, b->act);
        gz->at[i] *= exact_slope(sum, b->act);
    }
    right = matrix_is_near(&b->h, &h, &h, 8, "h") &&
            matrix_is_near(&b->gz, gz, gz, 16, "gradient of z");
    exact_drop(&x);
    exact_drop(&w1);
    exact_drop(&w2);
    exact_drop(&gy);
    exact_drop(&z);
    exact_drop(&h);
    return right;
}

static bool block_is_right(const block *b)
{
    exact gz, h = exact_of(&b->h), w1 = exact_of(&b->w1), w2 = exact_of(&b->w2);
    exact x = exact_of(&b->x), gy = exact_of(&b->gy), ones = exact_new(b->m, 1);
    bool right = hidden_is_right(b, &gz);

    for (int64_t i = 0; i < b->m; i++)
        ones.at[i] = 1;
    right = right && is_product(&b->y, &h, false, &w2, true, &b->b2, "y") &&
            is_product(&b->gx, &gz, false, &w1, false, NULL, "gradient of x") &&
            is_product(&b->gw1, &gz, true, &x, false, NULL, "gradient of w1") &&
            is_product(&b->gw2, &gy, true, &h, false, NULL, "gradient of w2") &&
            is_product(&b->gb1, &ones, true, &gz, false, NULL, "gradient of b1") &&
            is_product(&b->gb2, &ones, true, &gy, false, NULL, "gradient of b2");
    exact_drop(&gz);
    exact_drop(&h);
    exact_drop(&w1);
    exact_drop(&w2);
    exact_drop(&x);
    exact_drop(&gy);
    exact_drop(&ones);
    return right;
}

static void random_block(block *b, rng *r)
{
    static const ptac_dtype dtypes[] = {PTAC_F32, PTAC_F16, PTAC_BF16};

    *b = (block){
        .dtype = dtypes[rng_below(r, 3)],
        .act = (ptac_act)rng_below(r, PTAC_N_ACTS),
        .m = rng_between(r, 1, 30),
        .k = rng_between(r, 1, 20),
        .hidden = rng_chance(r, 50) ? 8 * rng_between(r, 1, 6) : rng_between(r, 1, 50),
        .n = rng_between(r, 1, 20),
    };
    block_make(b, r);
}

static void check_random_blocks(const uint32_t *refused, uint64_t seed)
{
    rng r = {seed};

    device_begin();
    refuse(refused);
    for (uint64_t i = 0; i < unit_amount(30, 1000); i++) {
        block b;

        random_block(&b, &r);
        EXPECT(ptac_mlp_forward(&b.place, &b.mlp) == PTAC_OK);
        EXPECT(ptac_mlp_backward(&b.place, &b.mlp, &b.grads) == PTAC_OK);
        EXPECT(block_is_right(&b));
        block_drop(&b);
    }
    EXPECT(emulated_lt.n_alive == 0);
    refuse(nothing);
}

UNIT(mlp_with_all_epilogues)
{
    check_random_blocks(nothing, 11);
}

UNIT(mlp_of_a_library_that_refuses_slopes)
{
    check_random_blocks(slopes, 12);
}

static const block usual = {
    .dtype = PTAC_BF16, .act = PTAC_ACT_RELU, .m = 16, .k = 16, .hidden = 64, .n = 8};

/* What follows the products of a step: launches, and bytes that these move. */
typedef struct rest {
    int64_t n_launches, bytes;
} rest;

static void expect_rest(rest expected)
{
    const emulated_work done = emulator_work();

    EXPECT(done.n_launches == expected.n_launches);
    EXPECT(done.bytes_read + done.bytes_written == expected.bytes);
}

static void expect_step(ptac_act act, rest forward, rest backward)
{
    rng r = {13};
    block b = usual;

    device_begin();
    b.act = act;
    block_make(&b, &r);
    forget_work();
    EXPECT(ptac_mlp_forward(&b.place, &b.mlp) == PTAC_OK);
    EXPECT(work_done().n_products == 2);
    expect_rest(forward);
    forget_work();
    EXPECT(ptac_mlp_backward(&b.place, &b.mlp, &b.grads) == PTAC_OK);
    EXPECT(work_done().n_products == 4);
    expect_rest(backward);
    block_drop(&b);
}

/*
 * Stock moves the hidden layer twice forward, in a launch, and four times backward, in
 * two. A third there sums for the second bias.
 */
UNIT(mlp_is_six_products_and_little_else)
{
    const int64_t hidden = usual.m * usual.hidden * 2, mask = hidden / 16;
    const int64_t sums = usual.hidden * (2 * (int64_t)sizeof(float) + 2);

    expect_step(PTAC_ACT_RELU, (rest){1, hidden + mask}, (rest){0, 0});
    expect_step(PTAC_ACT_GELU_TANH, (rest){0, 0}, (rest){0, 0});
    expect_step(PTAC_ACT_GELU, (rest){1, 2 * hidden}, (rest){2, 3 * hidden + sums});
}

/* As stock's, at NaN too, and not at 0: what a library's own mask says is not told. */
UNIT(mlp_passes_relu_where_stock_does)
{
    rng r = {19};
    block b = usual;

    device_begin();
    block_make(&b, &r);
    for (int64_t j = 0; j < b.k; j++) {
        matrix_put(&b.w1, 3, j, 0);
        matrix_put(&b.w1, 5, j, 0);
    }
    matrix_put(&b.b1, 0, 3, 0);
    matrix_put(&b.b1, 0, 5, NAN);
    EXPECT(ptac_mlp_forward(&b.place, &b.mlp) == PTAC_OK);
    EXPECT(matrix_at(&b.h, 2, 3) == 0);
    EXPECT(isnan(matrix_at(&b.h, 2, 5)));
    EXPECT(ptac_mlp_backward(&b.place, &b.mlp, &b.grads) == PTAC_OK);
    EXPECT(matrix_at(&b.gz, 2, 3) == 0);
    EXPECT(matrix_at(&b.gb1, 0, 3) == 0);
    EXPECT(matrix_at(&b.gz, 2, 5) != 0);
    EXPECT(isfinite(matrix_at(&b.gb1, 0, 5)));
    block_drop(&b);
}

/* What a block does with a fault in it: right results would be a fault of the test. */
static bool is_right_with(void (*spoil)(block *))
{
    rng r = {17};
    block b = usual;
    bool right;

    device_begin();
    block_make(&b, &r);
    right = ptac_mlp_forward(&b.place, &b.mlp) == PTAC_OK;
    if (spoil)
        spoil(&b);
    right = ptac_mlp_backward(&b.place, &b.mlp, &b.grads) == PTAC_OK && right &&
            block_is_right(&b);
    block_drop(&b);
    return right;
}

/* Rows are moved down by one: what backward reads of the mask is the row above. */
static void move_mask_by_a_row(block *b)
{
    uint8_t *mask = b->saved.data;

    memmove(mask + b->saved.ld, mask, (size_t)((b->m - 1) * b->saved.ld));
}

static void lengthen_mask_rows(block *b)
{
    b->mlp.saved.ld += 8;
}

static void shorten_rows(block *b)
{
    b->grads.gy.ld -= 1;
}

static void displace_mask(block *b)
{
    b->mlp.saved.data = (char *)b->mlp.saved.data + 1;
}

static void shrink_workspace(block *b)
{
    b->place.workspace.data = (char *)b->place.workspace.data + 16;
}

UNIT(mlp_faults_are_seen)
{
    EXPECT(is_right_with(NULL));
    EXPECT(!is_right_with(move_mask_by_a_row));
    EXPECT(!is_right_with(shorten_rows));
    EXPECT(!is_right_with(shrink_workspace));
    EXPECT_TEXT(emulated_lt.misuse, "a workspace that is not aligned");
    /* These the library refuses, and a kernel does them as it was told to. */
    ptac_lt_plan_clear();
    is_right_with(lengthen_mask_rows);
    EXPECT_TEXT(emulated_lt.misuse, "a leading dimension of the auxiliary matrix");
    EXPECT(!is_right_with(displace_mask));
    EXPECT_TEXT(emulated_lt.misuse, "an auxiliary matrix that is not aligned");
}
