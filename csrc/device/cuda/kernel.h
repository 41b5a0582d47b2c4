/*
 * kernel.h - the language of our CUDA kernels: all that a .cu file includes of CUDA.
 *
 * nvcc and NVRTC compile those files for a device, without any header of a toolkit's.
 * g++ compiles the same files for the CPU, where tests run them (emulate.h). What both
 * give bit for bit is written out: compilers of either side contract no multiplications
 * and additions (-fmad=false, -ffp-contract=off).
 */
#ifndef PTAC_DEVICE_CUDA_KERNEL_H
#define PTAC_DEVICE_CUDA_KERNEL_H

#ifdef __CUDACC__

#define PTAC_DEVICE static __device__ __forceinline__
#define PTAC_METHOD __device__ __forceinline__

/* A kernel under the name that the host asks for; blocks have at most n_threads. */
#define PTAC_KERNEL(name, n_threads, ...)                                              \
    extern "C" __global__ void __launch_bounds__(n_threads) name(__VA_ARGS__)

/* The same, with registers for n_blocks on a multiprocessor at once and no more. */
#define PTAC_KERNEL_BESIDE(name, n_threads, n_blocks, ...)                             \
    extern "C" __global__ void __launch_bounds__(n_threads, n_blocks) name(__VA_ARGS__)

/* A kernel's parameter of many bytes, read where the driver puts it. */
#define PTAC_CONSTANT(type) const __grid_constant__ type

/* Memory that a block's threads share; it holds anything when the block begins. */
#define PTAC_SHARED(type, name, n) __shared__ __align__(16) type name[n]

#else
#include "device/cuda/emulate.h"
#endif

typedef long long ptac_i64;
typedef unsigned int ptac_u32;
typedef unsigned long long ptac_u64;

enum {
    PTAC_WARP = 32,
    PTAC_PACK_BYTES = 16, /* the most that one instruction reads or writes */
};

/* --- numbers --- */

struct ptac_half {
    unsigned short bits;
};

struct ptac_bfloat16 {
    unsigned short bits;
};

#define PTAC_INFINITY __uint_as_float(0x7f800000u)

PTAC_DEVICE float ptac_nan()
{
    return __uint_as_float(0x7fc00000u);
}

/* An element as what it is computed with: a float, or a double. */
PTAC_DEVICE float ptac_real(float x)
{
    return x;
}

PTAC_DEVICE double ptac_real(double x)
{
    return x;
}

/* Not by a shift on a device: the compiler would keep its result, not repeat it. */
PTAC_DEVICE float ptac_real(ptac_bfloat16 x)
{
#ifdef __CUDACC__
    float result;

    asm("mov.b32 %0, {0, %1};" : "=f"(result) : "h"(x.bits));
    return result;
#else
    return __uint_as_float((ptac_u32)x.bits << 16);
#endif
}

PTAC_DEVICE float ptac_real(ptac_half x)
{
#ifdef __CUDACC__
    float result;

    asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(x.bits));
    return result;
#else
    return emulate::half_to_float(x.bits);
#endif
}

/* To the nearest, ties to even. */
PTAC_DEVICE void ptac_round(float x, float *result)
{
    *result = x;
}

PTAC_DEVICE void ptac_round(double x, double *result)
{
    *result = x;
}

/* Devices before sm_80 have no instruction for it; NaN becomes that one's. */
PTAC_DEVICE void ptac_round(float x, ptac_bfloat16 *result)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result->bits) : "f"(x));
#else
    const ptac_u32 bits = __float_as_uint(x), is_odd = bits >> 16 & 1;

    result->bits = (unsigned short)(x != x ? 0x7fffu : (bits + 0x7fffu + is_odd) >> 16);
#endif
}

PTAC_DEVICE void ptac_round(float x, ptac_half *result)
{
#ifdef __CUDACC__
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result->bits) : "f"(x));
#else
    result->bits = emulate::float_to_half(x);
#endif
}

template <class T, class R> PTAC_DEVICE T ptac_from(R x)
{
    T result;

    ptac_round(x, &result);
    return result;
}

/* --- memory --- */

/* So many elements side by side, read or written at once. */
template <class T, int n> struct alignas(n * sizeof(T)) ptac_pack {
    T at[n];
};

/* The device's memory, as a kernel's parameter: one pointer. */
template <class T> struct ptac_input {
    const T *data;

    PTAC_METHOD T operator[](ptac_i64 i) const
    {
        return pack<1>(i).at[0];
    }

    /* Elements from i on, whose address a pack's size divides. */
    template <int n> PTAC_METHOD ptac_pack<T, n> pack(ptac_i64 i) const
    {
#ifndef __CUDACC__
        emulate::note_read(data + i, n * sizeof(T), n * sizeof(T));
#endif
        return *(const ptac_pack<T, n> *)(data + i);
    }
};

template <class T> struct ptac_output {
    T *data;

    PTAC_METHOD T operator[](ptac_i64 i) const
    {
        return ptac_input<T>{data}[i];
    }

    PTAC_METHOD void put(ptac_i64 i, T value) const
    {
        put<1>(i, {{value}});
    }

    template <int n> PTAC_METHOD ptac_pack<T, n> pack(ptac_i64 i) const
    {
        return ptac_input<T>{data}.template pack<n>(i);
    }

    template <int n> PTAC_METHOD void put(ptac_i64 i, ptac_pack<T, n> values) const
    {
#ifndef __CUDACC__
        emulate::note_written(data + i, n * sizeof(T), n * sizeof(T));
#endif
        *(ptac_pack<T, n> *)(data + i) = values;
    }
};

/* --- threads --- */

/* This thread among all of a grid of one dimension, and how many those are. */
PTAC_DEVICE ptac_i64 ptac_thread()
{
    return (ptac_i64)blockIdx.x * blockDim.x + threadIdx.x;
}

PTAC_DEVICE ptac_i64 ptac_n_threads()
{
    return (ptac_i64)gridDim.x * blockDim.x;
}

/* The sum, or the largest, of a warp's values, in all its lanes; in a fixed order. */
PTAC_DEVICE float ptac_warp_sum(float x)
{
    for (int step = PTAC_WARP / 2; step > 0; step /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

PTAC_DEVICE float ptac_warp_max(float x)
{
    for (int step = PTAC_WARP / 2; step > 0; step /= 2) {
        const float other = __shfl_xor_sync(0xffffffffu, x, step);

        x = other > x || other != other ? other : x;
    }
    return x;
}

#endif
