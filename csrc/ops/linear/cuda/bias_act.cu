/*
 * bias_act.cu - what follows a product where cuBLASLt has no epilogue for it: bias and
 * activation; the gradient of the activation, with sums over columns for the bias.
 *
 * In float. Sums over columns have a fixed order: rows
 * of a thread, lines of a block, then groups in double (bias_grad).
 */
#include "ops/linear/cuda/act_kernel.h"
#include "ops/linear/cuda/bias_act_cuda.h"

enum {
    UNIT = PTAC_BIAS_ACT_UNIT,
    THREADS = PTAC_BIAS_ACT_THREADS,
};

/* A thread's part of a row. */
struct unit {
    float at[UNIT];
};

/* --- units in memory --- */

/* n of them count, the others are 0. Wide: all do, and addresses are those of packs. */
template <bool is_wide, class T>
PTAC_DEVICE unit load(ptac_input<T> from, ptac_i64 i, int n)
{
    constexpr int pack = PTAC_PACK_BYTES / sizeof(T);
    unit u;

    if (is_wide) {
        for (int p = 0; p < UNIT / pack; p++) {
            const ptac_pack<T, pack> values = from.template pack<pack>(i + p * pack);

            for (int e = 0; e < pack; e++)
                u.at[p * pack + e] = ptac_real(values.at[e]);
        }
    } else {
        for (int e = 0; e < UNIT; e++)
            u.at[e] = e < n ? ptac_real(from[i + e]) : 0.0f;
    }
    return u;
}

template <bool is_wide, class T>
PTAC_DEVICE void store(ptac_output<T> to, ptac_i64 i, int n, const unit &u)
{
    constexpr int pack = PTAC_PACK_BYTES / sizeof(T);

    if (is_wide) {
        for (int p = 0; p < UNIT / pack; p++) {
            ptac_pack<T, pack> values;

            for (int e = 0; e < pack; e++)
                values.at[e] = ptac_from<T>(u.at[p * pack + e]);
            to.template put<pack>(i + p * pack, values);
        }
    } else {
        for (int e = 0; e < UNIT; e++)
            if (e < n)
                to.put(i + e, ptac_from<T>(u.at[e]));
    }
}

/* As the matrix that is stored will have it. */
template <class T> PTAC_DEVICE void round_to(unit *u)
{
    for (int e = 0; e < UNIT; e++)
        u->at[e] = ptac_real(ptac_from<T>(u->at[e]));
}

/* --- activations of units --- */

template <int act> PTAC_DEVICE void all_acts_of(unit *u)
{
    for (int e = 0; e < UNIT; e++)
        u->at[e] = ptac_act_of<act>(u->at[e]);
}

template <int act> PTAC_DEVICE void all_grads_of(unit *g, const unit &x)
{
    for (int e = 0; e < UNIT; e++)
        g->at[e] = ptac_grad_of<act>(g->at[e], x.at[e]);
}

/* --- ReLU's mask --- */

/* Set where the gradient passes: at NaN too, as in stock. Behind n zeros. */
PTAC_DEVICE unsigned char mask_of(const unit &z, int n)
{
    unsigned int bits = 0;

    for (int e = 0; e < UNIT; e++)
        bits |= (e < n && !(z.at[e] <= 0.0f) ? 1u : 0u) << e;
    return (unsigned char)bits;
}

PTAC_DEVICE unit unit_of_mask(unsigned char bits)
{
    unit u;

    for (int e = 0; e < UNIT; e++)
        u.at[e] = bits >> e & 1 ? 1.0f : 0.0f;
    return u;
}

/* --- a block's tile --- */

struct tile {
    ptac_i64 column, row, last_row;
    int n_lines, line; /* rows that go side by side, and this thread's */
    int n;             /* columns of this thread that there are */
};

PTAC_DEVICE tile tile_of(const ptac_bias_act_tiles &t)
{
    const int group = (int)blockIdx.x / t.n_across;
    const int across = (int)blockIdx.x % t.n_across;
    const int lane = (int)threadIdx.x % t.width;
    const ptac_i64 column = ((ptac_i64)across * t.width + lane) * UNIT;
    const ptac_i64 first = group * t.group, left = t.n_cols - column;
    tile result;

    result.column = column;
    result.n_lines = THREADS / t.width;
    result.line = (int)threadIdx.x / t.width;
    result.row = first + result.line;
    result.last_row = first + t.group < t.n_rows ? first + t.group : t.n_rows;
    result.n = left <= 0 ? 0 : left < UNIT ? (int)left : UNIT;
    return result;
}

template <bool is_wide, class T>
PTAC_DEVICE void forward(ptac_input<T> z, ptac_input<T> bias, ptac_output<T> y,
                         ptac_output<T> kept, ptac_output<unsigned char> mask,
                         const ptac_bias_act_tiles &tiles, const ptac_bias_act_lds &ld,
                         int act)
{
    const tile t = tile_of(tiles);
    unit b = {};

    if (t.n == 0)
        return;
    if (bias.data)
        b = load<is_wide>(bias, t.column, t.n);
    for (ptac_i64 row = t.row; row < t.last_row; row += t.n_lines) {
        unit u = load<is_wide>(z, row * ld.z + t.column, t.n);

        if (bias.data) {
            for (int e = 0; e < UNIT; e++)
                u.at[e] += b.at[e];
        }
        if (kept.data) {
            round_to<T>(&u);
            store<is_wide>(kept, row * ld.kept + t.column, t.n, u);
        }
        if (mask.data)
            mask.put(row * ld.mask + t.column / UNIT, mask_of(u, t.n));
        if (!y.data)
            continue;
        PTAC_EACH_ACT(act, all_acts_of, &u)
        store<is_wide>(y, row * ld.y + t.column, t.n, u);
    }
}

/* A block's lines, summed in their order, are the group's partial sums. */
PTAC_DEVICE void add_lines(const unit &sum, const tile &t, ptac_output<float> partials,
                           ptac_i64 at)
{
    PTAC_SHARED(unit, of_thread, THREADS);
    const int width = THREADS / t.n_lines;

    of_thread[threadIdx.x] = sum;
    __syncthreads();
    if (t.line > 0 || t.n == 0)
        return;

    unit whole = sum;

    for (int line = 1; line < t.n_lines; line++) {
        for (int e = 0; e < UNIT; e++)
            whole.at[e] += of_thread[line * width + (int)threadIdx.x].at[e];
    }
    store<false>(partials, at, t.n, whole);
}

template <bool is_wide, class T>
PTAC_DEVICE void backward(ptac_input<T> g, ptac_input<T> saved,
                          ptac_input<unsigned char> mask, ptac_output<T> gz,
                          ptac_output<float> partials, const ptac_bias_act_tiles &tiles,
                          const ptac_bias_act_grad_lds &ld, int act)
{
    const tile t = tile_of(tiles);
    unit sum = {};

    if (t.n > 0)
        for (ptac_i64 row = t.row; row < t.last_row; row += t.n_lines) {
            unit u = load<is_wide>(g, row * ld.g + t.column, t.n), x = {};

            if (mask.data)
                x = unit_of_mask(mask[row * ld.mask + t.column / UNIT]);
            else if (saved.data)
                x = load<is_wide>(saved, row * ld.saved + t.column, t.n);
            PTAC_EACH_ACT(act, all_grads_of, &u, x)
            if (gz.data)
                store<is_wide>(gz, row * ld.gz + t.column, t.n, u);
            for (int e = 0; e < UNIT; e++)
                sum.at[e] += u.at[e];
        }
    if (partials.data)
        add_lines(sum, t, partials,
                  (ptac_i64)(blockIdx.x / tiles.n_across) * tiles.n_cols + t.column);
}

/* Each thread a column: the groups' partial sums, one after another. */
template <class T>
PTAC_DEVICE void add_groups(ptac_input<float> partials, ptac_output<T> gb,
                            ptac_i64 n_cols, int n_groups)
{
    const ptac_i64 column = ptac_thread();
    double sum = 0.0;

    if (column >= n_cols)
        return;
    for (int group = 0; group < n_groups; group++)
        sum += (double)partials[group * n_cols + column];
    gb.put(column, ptac_from<T>((float)sum));
}

#define FORWARD(name, is_wide, T)                                                      \
    PTAC_KERNEL(name, PTAC_BIAS_ACT_THREADS, ptac_input<T> z, ptac_input<T> bias,      \
                ptac_output<T> y, ptac_output<T> kept,                                 \
                ptac_output<unsigned char> mask, ptac_bias_act_tiles tiles,            \
                ptac_bias_act_lds ld, int act)                                         \
    {                                                                                  \
        forward<is_wide>(z, bias, y, kept, mask, tiles, ld, act);                      \
    }
#define BACKWARD(name, is_wide, T)                                                     \
    PTAC_KERNEL(name, PTAC_BIAS_ACT_THREADS, ptac_input<T> g, ptac_input<T> saved,     \
                ptac_input<unsigned char> mask, ptac_output<T> gz,                     \
                ptac_output<float> partials, ptac_bias_act_tiles tiles,                \
                ptac_bias_act_grad_lds ld, int act)                                    \
    {                                                                                  \
        backward<is_wide>(g, saved, mask, gz, partials, tiles, ld, act);               \
    }
#define KERNELS(suffix, T)                                                             \
    FORWARD(bias_act_##suffix, false, T)                                               \
    FORWARD(bias_act_wide_##suffix, true, T)                                           \
    BACKWARD(bias_act_grad_##suffix, false, T)                                         \
    BACKWARD(bias_act_grad_wide_##suffix, true, T)                                     \
    PTAC_KERNEL(bias_grad_##suffix, PTAC_BIAS_ACT_THREADS, ptac_input<float> partials, \
                ptac_output<T> gb, ptac_i64 n_cols, int n_groups)                      \
    {                                                                                  \
        add_groups(partials, gb, n_cols, n_groups);                                    \
    }

KERNELS(f32, float)
KERNELS(f16, ptac_half)
KERNELS(bf16, ptac_bfloat16)
