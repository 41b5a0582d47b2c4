/*
 * emulator.cc - the blocks, warps and fibres behind emulate.h.
 */
#include "emulator.h"

#include "device/cuda/emulate.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <vector>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif

namespace
{

constexpr int WARP = 32;
enum {
    MOST_THREADS = 1024, /* of a block */
    MOST_DEEP = 64,      /* threads along z */
    MOST_BLOCKS = 65535, /* along y and z; along x as many as an int has */
    MOST_SHARED = 48 << 10,
    STACK_BYTES = 64 << 10,
    UNWRITTEN = 0xff, /* a NaN, or -1 */
};

enum class state { ready, at_barrier, in_warp, over };

/* A CUDA thread. What it waits for is told by the members below its state. */
struct fibre {
    uint3 index;
    char *stack;
    void *at; /* its stack pointer, while another one runs */
    void *fake_stack;
    state is;
    emulate::site where;
    bool predicate;
    emulate::exchange kind;
    unsigned int mask;
    uint64_t given, received;
    int source;
};

struct shared {
    const void *declaration;
    std::vector<char> bytes;
};

/* Never destroyed: their memory is the program's. */
std::vector<fibre> &fibres = *new std::vector<fibre>;
std::vector<shared> &declared = *new std::vector<shared>;
fibre *running;
void *scheduler; /* its stack pointer */
#ifdef __SANITIZE_ADDRESS__
void *scheduler_fake_stack;
const void *scheduler_stack;
size_t scheduler_stack_bytes;
#endif
emulate::kernel *kernels;
const emulate::kernel *launched;
void **passed;
emulate::votes last_votes;
emulated_work work;
uint64_t order, random_state;

[[noreturn]] void fail(const char *why, const fibre &f)
{
    const uint3 &block = emulate::here.block;

    fprintf(stderr, "kernel %s, block (%u, %u, %u), thread (%u, %u, %u), %s:%d: %s\n",
            launched->name, block.x, block.y, block.z, f.index.x, f.index.y, f.index.z,
            f.where.file ? f.where.file : "", f.where.line, why);
    abort();
}

uint64_t random_below(uint64_t n)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state % n;
}

/* Numbers below n in the order that the test has chosen. */
std::vector<unsigned int> ordered(size_t n)
{
    std::vector<unsigned int> numbers(n);

    std::iota(numbers.begin(), numbers.end(), 0u);
    if (order == 1)
        for (size_t i = 0; i < n; i++)
            numbers[i] = (unsigned int)(n - 1 - i);
    for (size_t i = n; order > 1 && i > 1; i--)
        std::swap(numbers[i - 1], numbers[random_below(i)]);
    return numbers;
}

/* --- changing stacks --- */

#ifndef __x86_64__
#error "fibres change stacks in x86-64's own way"
#endif

extern "C" void emulator_change_stack(void **from, void *to);

asm(".text\n"
    ".type emulator_change_stack, @function\n"
    "emulator_change_stack:\n"
    "    pushq %rbp\n"
    "    pushq %rbx\n"
    "    pushq %r12\n"
    "    pushq %r13\n"
    "    pushq %r14\n"
    "    pushq %r15\n"
    "    movq %rsp, (%rdi)\n"
    "    movq %rsi, %rsp\n"
    "    popq %r15\n"
    "    popq %r14\n"
    "    popq %r13\n"
    "    popq %r12\n"
    "    popq %rbx\n"
    "    popq %rbp\n"
    "    ret\n"
    ".size emulator_change_stack, . - emulator_change_stack\n");

void leave(bool for_good)
{
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_start_switch_fiber(for_good ? nullptr : &running->fake_stack,
                                   scheduler_stack, scheduler_stack_bytes);
#endif
    (void)for_good;
    emulator_change_stack(&running->at, scheduler);
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(running->fake_stack, &scheduler_stack,
                                    &scheduler_stack_bytes);
#endif
}

void begin()
{
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(nullptr, &scheduler_stack, &scheduler_stack_bytes);
#endif
    launched->call(passed);
    running->is = state::over;
    leave(true);
    abort();
}

void prepare(fibre &f)
{
    enum { SAVED = 6 }; /* registers that emulator_change_stack() takes off */
    void **top = (void **)(f.stack + STACK_BYTES) - 1;

    *--top = (void *)begin;
    for (int i = 0; i < SAVED; i++)
        *--top = nullptr;
    f.at = top;
    f.is = state::ready;
    f.where = {};
}

void resume(fibre &f)
{
    running = &f;
    emulate::here.thread = f.index;
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_start_switch_fiber(&scheduler_fake_stack, f.stack, STACK_BYTES);
#endif
    emulator_change_stack(&scheduler, f.at);
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(scheduler_fake_stack, nullptr, nullptr);
#endif
}

/* --- waiting --- */

bool is_named(const fibre &f, int lane)
{
    return f.mask >> lane & 1;
}

bool is_there(const fibre *warp, int n_lanes, int lane)
{
    return lane < n_lanes && warp[lane].is != state::over;
}

/* Whether all that this lane's mask names, and that are there, wait for the same. */
bool is_complete(const fibre *warp, int n_lanes, const fibre &f)
{
    for (int lane = 0; lane < WARP; lane++) {
        if (!is_named(f, lane) || !is_there(warp, n_lanes, lane))
            continue;

        const fibre &other = warp[lane];

        if (other.is != state::in_warp || other.mask != f.mask)
            return false;
        if (other.where.line != f.where.line || other.kind != f.kind ||
            strcmp(other.where.file, f.where.file) != 0)
            fail("lanes that a mask names wait at another line", other);
    }
    return true;
}

uint64_t votes_of(const fibre *warp, int n_lanes, const fibre &f)
{
    uint64_t votes = 0;

    for (int lane = 0; lane < WARP; lane++)
        if (is_named(f, lane) && is_there(warp, n_lanes, lane))
            votes |= warp[lane].given << lane;
    return votes;
}

/* Let the lanes go on whose masks are complete; whether there are any. */
bool release_lanes(fibre *warp, int n_lanes)
{
    bool any = false;

    for (int first = 0; first < n_lanes; first++) {
        const fibre f = warp[first];

        if (f.is != state::in_warp || !is_complete(warp, n_lanes, f))
            continue;
        for (int lane = 0; lane < n_lanes; lane++) {
            fibre &other = warp[lane];

            if (!is_named(f, lane) || other.is != state::in_warp)
                continue;
            if (f.kind == emulate::exchange::vote)
                other.received = votes_of(warp, n_lanes, f);
            if (f.kind != emulate::exchange::value)
                continue;
            if (!is_named(f, other.source) || !is_there(warp, n_lanes, other.source))
                fail("a lane reads one that its mask does not name, or that is gone",
                     other);
            other.received = warp[other.source].given;
        }
        for (int lane = 0; lane < n_lanes; lane++)
            if (is_named(f, lane) && warp[lane].is == state::in_warp)
                warp[lane].is = state::ready;
        any = true;
    }
    return any;
}

/* All threads wait at the barrier, or the program is wrong. */
void release_block(size_t n)
{
    const fibre &first = fibres[0];

    last_votes = {0, (int)n};
    for (size_t i = 0; i < n; i++) {
        const fibre &f = fibres[i];

        if (f.is == state::in_warp)
            fail("a lane waits for lanes that do not come", f);
        if (f.is == state::over || first.is == state::over)
            fail("a barrier that threads which have returned do not reach",
                 f.is == state::over ? first : f);
        if (f.where.line != first.where.line ||
            strcmp(f.where.file, first.where.file) != 0)
            fail("threads of a block wait at different barriers", f);
        last_votes.n_true += f.predicate;
    }
    for (size_t i = 0; i < n; i++)
        fibres[i].is = state::ready;
}

/* Run all threads that can; whether there were any. */
bool run_ready(size_t n, size_t *n_over)
{
    bool any = false;

    for (unsigned int i : ordered(n)) {
        if (fibres[i].is != state::ready)
            continue;
        resume(fibres[i]);
        any = true;
        *n_over += fibres[i].is == state::over;
    }
    return any;
}

void run_block(size_t n)
{
    size_t n_over = 0;

    for (shared &memory : declared)
        memset(memory.bytes.data(), UNWRITTEN, memory.bytes.size());
    for (size_t i = 0; i < n; i++)
        prepare(fibres[i]);
    while (n_over < n) {
        bool any = run_ready(n, &n_over);

        for (size_t begin = 0; begin < n; begin += WARP)
            any |=
                release_lanes(&fibres[begin], (int)std::min<size_t>(n - begin, WARP));
        if (!any)
            release_block(n);
    }
    work.n_blocks++;
}

bool is_accepted(const emulated_grid *grid, const emulate::kernel *kernel)
{
    const unsigned int *threads = grid->threads, *blocks = grid->blocks;
    const uint64_t n = (uint64_t)threads[0] * threads[1] * threads[2];

    return n > 0 && n <= MOST_THREADS && n <= (uint64_t)kernel->most_threads &&
           threads[2] <= MOST_DEEP && blocks[0] > 0 && blocks[1] > 0 && blocks[2] > 0 &&
           blocks[0] <= INT32_MAX && blocks[1] <= MOST_BLOCKS &&
           blocks[2] <= MOST_BLOCKS;
}

/* Fibres of a block of this shape, with stacks of their own. */
void make_fibres(const uint3 &shape)
{
    const size_t n = (size_t)shape.x * shape.y * shape.z;

    while (fibres.size() < n) {
        fibre f = {};

        f.stack = (char *)aligned_alloc(64, STACK_BYTES);
        if (!f.stack)
            abort();
        fibres.push_back(f);
    }
    for (size_t i = 0; i < n; i++)
        fibres[i].index = {(unsigned int)(i % shape.x),
                           (unsigned int)(i / shape.x % shape.y),
                           (unsigned int)(i / shape.x / shape.y)};
}

void check_alignment(const void *address, size_t alignment)
{
    if ((uintptr_t)address % alignment != 0)
        fail("an address that is not aligned for what is read or written", *running);
}

} // namespace

namespace emulate
{

place here;

void add(kernel *added)
{
    added->next = kernels;
    kernels = added;
}

votes wait_for_block(bool predicate, site where)
{
    running->is = state::at_barrier;
    running->predicate = predicate;
    running->where = where;
    leave(false);
    return last_votes;
}

uint64_t exchange_in_warp(exchange kind, unsigned int mask, uint64_t given, int source,
                          site where)
{
    fibre &f = *running;

    f.where = where;
    f.mask = mask;
    f.kind = kind;
    f.given = given;
    f.source = source;
    if (!is_named(f, lane()))
        fail("a lane's own mask does not name it", f);
    f.is = state::in_warp;
    leave(false);
    return f.received;
}

void *shared_memory(const void *declaration, size_t bytes)
{
    size_t total = bytes;

    for (shared &memory : declared) {
        if (memory.declaration == declaration)
            return memory.bytes.data();
        total += memory.bytes.size();
    }
    if (total > MOST_SHARED)
        fail("more shared memory than a block has", *running);
    declared.push_back({declaration, std::vector<char>(bytes, (char)UNWRITTEN)});
    return declared.back().bytes.data();
}

void trap(site where)
{
    running->where = where;
    fail("the kernel stops the device", *running);
}

void note_read(const void *address, size_t bytes, size_t alignment)
{
    check_alignment(address, alignment);
    work.bytes_read += (int64_t)bytes;
    work.n_accesses++;
}

void note_written(const void *address, size_t bytes, size_t alignment)
{
    check_alignment(address, alignment);
    work.bytes_written += (int64_t)bytes;
    work.n_accesses++;
}

float half_to_float(unsigned short bits)
{
    const int sign = bits >> 15, exponent = bits >> 10 & 0x1f, mantissa = bits & 0x3ff;
    float magnitude;

    if (exponent == 0x1f)
        return from_bits<float>((uint64_t)sign << 31 | 0x7f800000u |
                                (uint64_t)mantissa << 13);
    magnitude = exponent ? ldexpf((float)(mantissa | 0x400), exponent - 25)
                         : ldexpf((float)mantissa, -24);
    return sign ? -magnitude : magnitude;
}

unsigned short float_to_half(float x)
{
    const unsigned int bits = (unsigned int)to_bits(x), sign = bits >> 16 & 0x8000;
    const float magnitude = fabsf(x);

    if (x != x)
        return 0x7fff; /* the one NaN that cvt.rn.f16.f32 gives */
    if (magnitude >= 65520.0f)
        return (unsigned short)(sign | 0x7c00);
    if (magnitude < 0x1p-14f) /* a multiple of 2^-24, as the sum's last place is */
        return (unsigned short)(sign | (to_bits(magnitude + 0x1p-1f) & 0x7ff));

    const unsigned int rounded =
        (unsigned int)to_bits(magnitude) + 0xfff + (bits >> 13 & 1);

    return (unsigned short)(sign | ((rounded >> 13) - (112 << 10)));
}

} // namespace emulate

const void *emulator_find(const char *name)
{
    const emulate::kernel *found = kernels;

    while (found && strcmp(found->name, name) != 0)
        found = found->next;
    return found;
}

int emulator_n_parameters(const void *kernel)
{
    return ((const emulate::kernel *)kernel)->n_parameters;
}

const char *emulator_name(const void *kernel)
{
    return ((const emulate::kernel *)kernel)->name;
}

bool emulator_launch(const void *kernel, const emulated_grid *grid, void **parameters)
{
    const uint3 threads = {grid->threads[0], grid->threads[1], grid->threads[2]};
    const uint3 blocks = {grid->blocks[0], grid->blocks[1], grid->blocks[2]};

    launched = (const emulate::kernel *)kernel;
    passed = parameters;
    if (!is_accepted(grid, launched))
        return false;
    declared.clear();
    random_state = order + 1;
    make_fibres(threads);
    emulate::here = {
        .thread = {}, .block = {}, .n_threads = threads, .n_blocks = blocks};
    for (unsigned int i : ordered((size_t)blocks.x * blocks.y * blocks.z)) {
        emulate::here.block = {i % blocks.x, i / blocks.x % blocks.y,
                               i / blocks.x / blocks.y};
        run_block((size_t)threads.x * threads.y * threads.z);
    }
    work.n_launches++;
    return true;
}

void emulator_set_order(uint64_t chosen)
{
    order = chosen;
}

emulated_work emulator_work(void)
{
    return work;
}

void emulator_forget(void)
{
    work = {};
}
