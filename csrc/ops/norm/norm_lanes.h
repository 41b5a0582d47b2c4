/*
 * norm_lanes.h - a row of a tensor in the registers of a group of lanes, and sums over
 * such groups; for norm.cu and norm_backward.cu.
 */
#ifndef PTAC_OPS_NORM_NORM_LANES_H
#define PTAC_OPS_NORM_NORM_LANES_H

#include "device/cuda/kernel.h"
#include "ops/norm/norm_cuda.h"

enum {
    NORM_WARPS = PTAC_NORM_MOST_LANES / PTAC_WARP,
};

/* Elements that a lane has, in packs of V. */
#define NORM_EACH(V) ((V) > 1 ? PTAC_NORM_EACH : PTAC_NORM_SINGLE_EACH)

/* This thread's group: where it is in its block, and the thread in it. */
struct group {
    int lanes, index, lane, n_groups;
};

PTAC_DEVICE group group_of(int lanes)
{
    return {lanes, (int)threadIdx.x / lanes, (int)threadIdx.x % lanes,
            (int)blockDim.x / lanes};
}

/*
 * Sums over the lanes of each group, of n values at once, in a fixed order. All threads
 * of a block take part. Of two halves of memory one is written while the other may
 * still be read.
 */
struct group_sums {
    float *memory; /* two values of each warp, twice */
    int turn;

    template <int n> PTAC_METHOD void add(const group &mine, float (&x)[n])
    {
        static_assert(n <= 2, "memory has room for two values");
        const int warp = (int)threadIdx.x / PTAC_WARP;
        const int first = mine.index * mine.lanes / PTAC_WARP;
        float *half = memory + turn * 2 * NORM_WARPS;

        for (int k = 0; k < n; k++)
            x[k] = ptac_warp_sum(x[k]);
        if (mine.lanes == PTAC_WARP)
            return;
        if (threadIdx.x % PTAC_WARP == 0)
            for (int k = 0; k < n; k++)
                half[k * NORM_WARPS + warp] = x[k];
        __syncthreads();
        for (int k = 0; k < n; k++) {
            x[k] = 0.0f;
            for (int i = first; i < first + mine.lanes / PTAC_WARP; i++)
                x[k] += half[k * NORM_WARPS + i];
        }
        turn ^= 1;
    }

    PTAC_METHOD float sum(const group &mine, float x)
    {
        float values[1] = {x};

        add(mine, values);
        return values[0];
    }
};

#define NORM_SUMS(name)                                                                \
    PTAC_SHARED(float, memory_of_##name, 4 * NORM_WARPS);                              \
    group_sums name = {memory_of_##name, 0}

/* Where pack k of a lane begins in its row, in elements. */
template <int V> PTAC_DEVICE int place_of(const group &mine, int k)
{
    return (k * mine.lanes + mine.lane) * V;
}

/*
 * Elements from i on, or what stands for them where there is no such tensor: 1, or the
 * zero that changes nothing when it is added, not even another zero's sign.
 */
template <int V, class T>
PTAC_DEVICE ptac_pack<T, V> pack_or(ptac_input<T> from, ptac_i64 i, float otherwise)
{
    ptac_pack<T, V> pack;

    if (from.data)
        return from.template pack<V>(i);
    for (int k = 0; k < V; k++)
        pack.at[k] = ptac_from<T>(otherwise);
    return pack;
}

/* What a lane has of a row of n elements as it lies in memory, zeros beyond its end. */
template <class T, int V> struct lane_packs {
    ptac_pack<T, V> at[NORM_EACH(V) / V];

    PTAC_METHOD void load(ptac_input<T> from, ptac_i64 begin, int n, const group &mine)
    {
        for (int k = 0; k < NORM_EACH(V) / V; k++) {
            at[k] = {};
            if (place_of<V>(mine, k) < n)
                at[k] = from.template pack<V>(begin + place_of<V>(mine, k));
        }
    }

    PTAC_METHOD float operator[](int i) const
    {
        return ptac_real(at[i / V].at[i % V]);
    }
};

template <int V, class T>
PTAC_DEVICE void store(const float (&values)[NORM_EACH(V)], ptac_output<T> to,
                       ptac_i64 begin, int n, const group &mine)
{
    for (int k = 0; k < NORM_EACH(V) / V; k++) {
        const int at = place_of<V>(mine, k);
        ptac_pack<T, V> pack;

        for (int i = 0; i < V; i++)
            pack.at[i] = ptac_from<T>(values[k * V + i]);
        if (at < n)
            to.template put<V>(begin + at, pack);
    }
}

/*
 * The weights that belong to a lane's elements; what stands for them where there are
 * none. Where a block has several groups, it reads them once for all: every thread has
 * to come here.
 */
template <int V, class T>
PTAC_DEVICE void load_weights(lane_packs<T, V> &weights, ptac_input<T> from,
                              float otherwise, int n, const group &mine)
{
    PTAC_SHARED(T, shared, PTAC_NORM_SHARING * NORM_EACH(V));
    ptac_pack<T, V> *const packs = (ptac_pack<T, V> *)shared;

    if (!from.data) {
        for (int i = 0; i < NORM_EACH(V); i++)
            weights.at[i / V].at[i % V] = ptac_from<T>(otherwise);
    } else if (mine.n_groups == 1) {
        weights.load(from, 0, n, mine);
    } else {
        __syncthreads();
        for (int pack = threadIdx.x; pack * V < n; pack += blockDim.x)
            packs[pack] = from.template pack<V>(pack * V);
        __syncthreads();
        for (int k = 0; k < NORM_EACH(V) / V; k++) {
            const int place = place_of<V>(mine, k);

            weights.at[k] = place < n ? packs[place / V] : ptac_pack<T, V>{};
        }
    }
}

#endif
