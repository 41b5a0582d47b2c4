/*
 * step_cuda_tpl.h - the steps of SGD, Adam and AdamW and zero_grad on CUDA, for tables
 * of one size.
 *
 * Included by step.cu and step_large.cu behind kernel.h. Expects
 *
 *   BYTES        of a table
 *   NAME(name)   a kernel's name, followed by _ and its dtype where it has one
 *
 * A block has a chunk of one tensor. A thread reads 16 bytes of each array before it
 * writes any: 64 bytes of Adam's four, so that the 1,024 or more threads of a
 * multiprocessor have at least 64 KB on their way, about twice what an H200 needs to
 * fill its bandwidth (4.8 TB/s at 0.8 us, over 132 multiprocessors: 29 KB).
 *
 * Numbers of 16 bits are computed with in float and rounded once each, when stored, as
 * torch's fused kernels do.
 */
#include "ops/optim/step_cuda.h"

/* What elements are computed with. */
template <class T> using real_of = decltype(ptac_real(T()));

/* Elements of a pack, and of a chunk. */
template <class T> struct sizes {
    enum {
        PACK = PTAC_PACK_BYTES / sizeof(T),
        CHUNK = PTAC_STEP_CHUNK_BYTES / sizeof(T),
    };
};

PTAC_DEVICE float multiply_add(float a, float b, float c)
{
    return __fmaf_rn(a, b, c);
}

PTAC_DEVICE double multiply_add(double a, double b, double c)
{
    return fma(a, b, c);
}

PTAC_DEVICE float root(float x)
{
    return __fsqrt_rn(x);
}

PTAC_DEVICE double root(double x)
{
    return sqrt(x);
}

/* 1 - exp(x), also of small x. */
PTAC_DEVICE float one_minus_exp(float x)
{
    return -expm1f(x);
}

PTAC_DEVICE double one_minus_exp(double x)
{
    return -expm1(x);
}

/* --- whose a block's chunk is --- */

template <class entry> struct table {
    int n;
    entry entries[PTAC_STEP_ROOM(entry, BYTES)];
};

/* The entry of a chunk: the last one that begins with it or before. */
template <class entry> PTAC_DEVICE int entry_of(const table<entry> &t, int chunk)
{
    int low = 0, high = t.n;

    while (high - low > 1) {
        const int middle = (low + high) / 2;

        if (t.entries[middle].first_chunk <= chunk)
            low = middle;
        else
            high = middle;
    }
    return low;
}

PTAC_DEVICE bool is_aligned(const void *a)
{
    return (unsigned long long)a % PTAC_PACK_BYTES == 0;
}

/*
 * Of an array of n elements, the part that is this block's, a chunk: its first element
 * and how many it has. So many of them, from the first on, are taken in packs.
 */
struct part {
    int first, n, n_packed;
};

template <class T> PTAC_DEVICE part part_of(int chunk, int n, bool in_packs)
{
    const int first = chunk * sizes<T>::CHUNK, left = n - first;
    const int mine = left < sizes<T>::CHUNK ? left : (int)sizes<T>::CHUNK;

    return {first, mine, in_packs ? mine / sizes<T>::PACK * sizes<T>::PACK : 0};
}

/* Give all elements of a part to step.take<n>(i), n of them from i on at a time. */
template <class T, class stepper>
PTAC_DEVICE void walk(const part &p, const stepper &step)
{
    enum { PACK = sizes<T>::PACK };
    const int me = (int)threadIdx.x;

    for (int i = me * PACK; i < p.n_packed; i += PTAC_STEP_THREADS * PACK)
        step.template take<PACK>(p.first + i);
    for (int i = p.n_packed + me; i < p.n; i += PTAC_STEP_THREADS)
        step.template take<1>(p.first + i);
}

#include "ops/optim/adam_cuda_tpl.h"
#include "ops/optim/sgd_cuda_tpl.h"

/* --- what else there is to launch --- */

/* Steps of a captured step are counted behind it, when no block reads them any more. */
template <class T> PTAC_DEVICE void count_steps(const table<ptac_count_entry> &t)
{
    const int i = (int)ptac_thread();

    if (i < t.n) {
        const ptac_output<T> step = {(T *)t.entries[i].step};

        step.put(0, step[0] + 1);
    }
}

/* The chunk's bytes in packs, and what lies around these by pairs. */
PTAC_DEVICE void zero(const table<ptac_zero_entry> &t)
{
    typedef unsigned short pair;
    enum { PAIRS = PTAC_PACK_BYTES / sizeof(pair) };
    const ptac_zero_entry &e = t.entries[entry_of(t, (int)blockIdx.x)];
    const int odd = (int)((unsigned long long)e.data % PTAC_PACK_BYTES / sizeof(pair));
    const int before = odd ? PAIRS - odd : 0;
    const part p = part_of<pair>((int)blockIdx.x - e.first_chunk,
                                 e.bytes / (int)sizeof(pair), false);
    const ptac_output<pair> data = {(pair *)e.data + p.first};
    const int first = before < p.n ? before : p.n;
    const int last = first + (p.n - first) / PAIRS * PAIRS, me = (int)threadIdx.x;

    for (int i = first + me * PAIRS; i < last; i += PTAC_STEP_THREADS * PAIRS)
        data.template put<PAIRS>(i, {});
    if (me < first)
        data.put(me, 0);
    if (last + me < p.n)
        data.put(last + me, 0);
}

/* Names are put together before PTAC_KERNEL() sees them. */
#define KERNEL(name, ...) PTAC_KERNEL(name, PTAC_STEP_THREADS, __VA_ARGS__)

#define KERNELS(suffix, T)                                                             \
    KERNEL(NAME(sgd_step_##suffix), PTAC_CONSTANT(table<ptac_sgd_entry>) t,            \
           PTAC_CONSTANT(ptac_cuda_sgd) sgd)                                           \
    {                                                                                  \
        step_by_sgd<T>(t, sgd);                                                        \
    }                                                                                  \
    KERNEL(NAME(adam_step_##suffix), PTAC_CONSTANT(table<ptac_adam_entry>) t,          \
           PTAC_CONSTANT(ptac_cuda_adam) adam)                                         \
    {                                                                                  \
        step_by_adam<T>(t, adam);                                                      \
    }

#define COUNTS(suffix, T)                                                              \
    KERNEL(NAME(count_steps_##suffix), PTAC_CONSTANT(table<ptac_count_entry>) t)       \
    {                                                                                  \
        count_steps<T>(t);                                                             \
    }

KERNELS(f32, float)
KERNELS(f64, double)
KERNELS(f16, ptac_half)
KERNELS(bf16, ptac_bfloat16)
COUNTS(f32, float)
COUNTS(f64, double)

KERNEL(NAME(zero_grad), PTAC_CONSTANT(table<ptac_zero_entry>) t)
{
    zero(t);
}
