/*
 * emulate.h - CUDA's language for g++: kernels run on the CPU, for tests only.
 *
 * Each CUDA thread is a fibre. Blocks run one after another; within a block a thread
 * runs until it has to wait for others. What the hardware leaves undefined ends the
 * program with the line at fault: barriers that not all threads reach, lanes that a
 * warp's mask names wrongly, addresses that are not aligned. Shared memory begins as
 * NaNs. Which thread goes first is the test's choice, so that a missing barrier shows.
 *
 * Not emulated: tensor cores, asynchronous copies, clusters, races between blocks, weak
 * ordering of memory, and the last bits of expf() and its like.
 */
#ifndef PTAC_DEVICE_CUDA_EMULATE_H
#define PTAC_DEVICE_CUDA_EMULATE_H

#include <cmath>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <type_traits>
#include <utility>

struct uint3 {
    unsigned int x, y, z;
};

namespace emulate
{

/* Where in a kernel's source a thread waits. */
struct site {
    const char *file;
    int line;
};

/* A kernel: called in each thread, with its parameters as the driver passes them. */
struct kernel {
    const char *name;
    int most_threads; /* of a block */
    int n_parameters;
    void (*call)(void **parameters);
    kernel *next;
};

void add(kernel *added);

/* --- what the running thread asks for --- */

struct place {
    uint3 thread, block, n_threads, n_blocks;
};
extern place here;

/* Of each thread's predicate, what all of them hear. */
struct votes {
    int n_true, n_threads;
};

votes wait_for_block(bool predicate, site where);

/* What a lane gives to its warp, and what it wants. */
enum class exchange { sync, value, vote };
uint64_t exchange_in_warp(exchange kind, unsigned int mask, uint64_t given, int source,
                          site where);

/* A block's memory of this declaration, NaNs when the block begins. */
void *shared_memory(const void *declaration, size_t bytes);

[[noreturn]] void trap(site where);

void note_read(const void *address, size_t bytes, size_t alignment);
void note_written(const void *address, size_t bytes, size_t alignment);

/* --- numbers of 16 bits --- */

float half_to_float(unsigned short bits);
unsigned short float_to_half(float x);

/* --- parameters, by the kernel's own types --- */

template <class... P, size_t... i>
inline void unpack(void (*body)(P...), void **parameters, std::index_sequence<i...>)
{
    body(*static_cast<std::remove_reference_t<P> *>(parameters[i])...);
}

template <class... P> constexpr int count(void (*)(P...))
{
    return sizeof...(P);
}

template <class... P> inline void unpack(void (*body)(P...), void **parameters)
{
    unpack(body, parameters, std::index_sequence_for<P...>());
}

struct adder {
    explicit adder(kernel *added)
    {
        add(added);
    }
};

template <class T> inline uint64_t to_bits(T value)
{
    static_assert(sizeof(T) <= sizeof(uint64_t), "lanes exchange at most 8 bytes");
    uint64_t bits = 0;

    memcpy(&bits, &value, sizeof(T));
    return bits;
}

template <class T> inline T from_bits(uint64_t bits)
{
    T value;

    memcpy(&value, &bits, sizeof(T));
    return value;
}

inline int lane()
{
    const place &p = here;

    return (
        int)(((p.thread.z * p.n_threads.y + p.thread.y) * p.n_threads.x + p.thread.x) %
             32);
}

template <class T> inline T shuffle(unsigned int mask, T value, int source, site where)
{
    return from_bits<T>(
        exchange_in_warp(exchange::value, mask, to_bits(value), source, where));
}

} // namespace emulate

#define PTAC_DEVICE static inline
#define PTAC_METHOD inline

#define PTAC_KERNEL(kernel_name, n_threads, ...)                                       \
    static void kernel_name(__VA_ARGS__);                                              \
    static emulate::kernel kernel_of_##kernel_name = {                                 \
        #kernel_name, n_threads, emulate::count(kernel_name),                          \
        [](void **parameters) { emulate::unpack(kernel_name, parameters); }, nullptr}; \
    static emulate::adder adder_of_##kernel_name(&kernel_of_##kernel_name);            \
    static void kernel_name(__VA_ARGS__)

#define PTAC_KERNEL_BESIDE(kernel_name, n_threads, n_blocks, ...)                      \
    PTAC_KERNEL(kernel_name, n_threads, __VA_ARGS__)

/* By reference: a copy for each thread would take longer than the kernel does. */
#define PTAC_CONSTANT(type) const type &

#define PTAC_SHARED(type, name, n)                                                     \
    static const char declaration_of_##name = 0;                                       \
    type *const name = static_cast<type *>(                                            \
        emulate::shared_memory(&declaration_of_##name, (n) * sizeof(type)))

#define threadIdx (emulate::here.thread)
#define blockIdx  (emulate::here.block)
#define blockDim  (emulate::here.n_threads)
#define gridDim   (emulate::here.n_blocks)

#define PTAC_HERE emulate::site where = {__builtin_FILE(), __builtin_LINE()}

static inline void __syncthreads(PTAC_HERE)
{
    emulate::wait_for_block(false, where);
}

[[noreturn]] static inline void __trap(PTAC_HERE)
{
    emulate::trap(where);
}

static inline int __syncthreads_or(int predicate, PTAC_HERE)
{
    return emulate::wait_for_block(predicate, where).n_true > 0;
}

static inline int __syncthreads_and(int predicate, PTAC_HERE)
{
    const emulate::votes votes = emulate::wait_for_block(predicate, where);

    return votes.n_true == votes.n_threads;
}

static inline int __syncthreads_count(int predicate, PTAC_HERE)
{
    return emulate::wait_for_block(predicate, where).n_true;
}

static inline void __syncwarp(unsigned int mask = 0xffffffffu, PTAC_HERE)
{
    emulate::exchange_in_warp(emulate::exchange::sync, mask, 0, emulate::lane(), where);
}

/* Of the lanes of a width's part of the warp, as the CUDA C++ guide has them. */
template <class T>
static inline T __shfl_sync(unsigned int mask, T value, int source, int width = 32,
                            PTAC_HERE)
{
    const int begin = emulate::lane() / width * width;

    return emulate::shuffle(mask, value, begin + (source & (width - 1)), where);
}

template <class T>
static inline T __shfl_xor_sync(unsigned int mask, T value, int lanes, int width = 32,
                                PTAC_HERE)
{
    const int me = emulate::lane(), source = me ^ lanes;

    return emulate::shuffle(mask, value, source / width > me / width ? me : source,
                            where);
}

template <class T>
static inline T __shfl_down_sync(unsigned int mask, T value, int lanes, int width = 32,
                                 PTAC_HERE)
{
    const int me = emulate::lane(), source = me + lanes;

    return emulate::shuffle(mask, value, source / width != me / width ? me : source,
                            where);
}

template <class T>
static inline T __shfl_up_sync(unsigned int mask, T value, int lanes, int width = 32,
                               PTAC_HERE)
{
    const int me = emulate::lane(), source = me - lanes;
    const bool is_inside = source >= me / width * width;

    return emulate::shuffle(mask, value, is_inside ? source : me, where);
}

static inline unsigned int __ballot_sync(unsigned int mask, int predicate, PTAC_HERE)
{
    return (unsigned int)emulate::exchange_in_warp(emulate::exchange::vote, mask,
                                                   predicate != 0, 0, where);
}

static inline int __any_sync(unsigned int mask, int predicate, PTAC_HERE)
{
    return __ballot_sync(mask, predicate, where) != 0;
}

static inline int __all_sync(unsigned int mask, int predicate, PTAC_HERE)
{
    return __ballot_sync(mask, predicate, where) == mask;
}

/* Blocks run one after another, so that atomic operations are what they are anyway. */
template <class T> static inline T atomicAdd(T *address, T value)
{
    const T before = *address;

    *address = before + value;
    return before;
}

template <class T> static inline T atomicMax(T *address, T value)
{
    const T before = *address;

    *address = value > before ? value : before;
    return before;
}

static inline unsigned int __umulhi(unsigned int a, unsigned int b)
{
    return (unsigned int)((unsigned long long)a * b >> 32);
}

static inline float __uint_as_float(unsigned int bits)
{
    return emulate::from_bits<float>(bits);
}

static inline unsigned int __float_as_uint(float x)
{
    return (unsigned int)emulate::to_bits(x);
}

static inline float __fmaf_rn(float a, float b, float c)
{
    return fmaf(a, b, c);
}

static inline float __fsqrt_rn(float x)
{
    return sqrtf(x);
}

static inline float rsqrtf(float x)
{
    return 1.0f / sqrtf(x);
}

static inline int __popc(unsigned int bits)
{
    return __builtin_popcount(bits);
}

/* std's are overloads for all types; CUDA's names of floats are those of C. */
using std::isnan;

#endif
