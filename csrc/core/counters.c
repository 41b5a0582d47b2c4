/*
 * counters.c - one block a thread, linked once, recycled when its thread has ended.
 */
#include "core/counters.h"

#include "core/debug.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef struct block {
    struct block *next;
    bool in_use;
    int64_t depth;    /* calls of this thread in flight */
    uint64_t entered; /* calls that this thread ever entered */
    ptac_op_counts ops[PTAC_N_OPS];
    const struct ptac_kernel *rows[PTAC_N_OPS]; /* not in static TLS: it is little */
} block;

/*
 * The list only grows at its head and blocks are never freed: a reader needs no
 * lock, and a process has as many blocks as it ever had threads at once.
 */
static block *blocks;
static block shared; /* for threads that found no memory; may lose counts */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_key_t thread_end;
static bool was_timed[PTAC_N_OPS];
static __thread block *mine;
static __thread struct {
    double stock_ns, saved_ns;
    ptac_op op;
    bool is_open;
    double all_saved_ns;
} estimated;

/* Of whole numbers and doubles, both of which the builtins' generic forms take. */
#define READ(field)                                                                    \
    ({                                                                                 \
        __typeof__((field) + 0) value_;                                                \
                                                                                       \
        __atomic_load(&(field), &value_, __ATOMIC_RELAXED);                            \
        value_;                                                                        \
    })
#define ADD(field, n)                                                                  \
    do {                                                                               \
        __typeof__(field) sum_ = READ(field) + (n);                                    \
                                                                                       \
        __atomic_store(&(field), &sum_, __ATOMIC_RELAXED);                             \
    } while (0)

/* Destructors that run later may still count: they adopt anew and end here again. */
static void release(void *of_thread)
{
    block *b = of_thread;

    mine = NULL;
    __atomic_store_n(&b->in_use, false, __ATOMIC_RELEASE);
}

static void before_fork(void)
{
    pthread_mutex_lock(&lock);
}

static void after_fork(void)
{
    pthread_mutex_unlock(&lock);
}

/* In a child only the forking thread goes on: calls of others never end there. */
static void after_fork_in_child(void)
{
    for (block *b = blocks; b; b = b->next) {
        if (b != mine) {
            b->depth = 0;
            b->in_use = false;
        }
    }
    pthread_mutex_unlock(&lock);
}

__attribute__((constructor)) static void prepare(void)
{
    pthread_key_create(&thread_end, release);
    pthread_atfork(before_fork, after_fork, after_fork_in_child);
}

static __attribute__((noinline)) block *adopt(void)
{
    block *b;

    pthread_mutex_lock(&lock);
    for (b = blocks; b; b = b->next)
        if (!__atomic_load_n(&b->in_use, __ATOMIC_ACQUIRE))
            break;
    if (!b) {
        b = aligned_alloc(64, (sizeof *b + 63) & ~(size_t)63);
        if (b) {
            *b = (block){.next = blocks};
            __atomic_store_n(&blocks, b, __ATOMIC_RELEASE);
        }
    }
    if (b)
        __atomic_store_n(&b->in_use, true, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&lock);
    if (!b)
        return &shared;
    memset(b->rows, 0, sizeof b->rows); /* another thread's */
    pthread_setspecific(thread_end, b);
    mine = b;
    return b;
}

static inline block *own(void)
{
    return mine ? mine : adopt();
}

void ptac_note_row(ptac_op op, const struct ptac_kernel *row)
{
    own()->rows[op] = row;
}

const struct ptac_kernel *ptac_noted_row(ptac_op op)
{
    return own()->rows[op];
}

void ptac_count_estimate(ptac_op op, double stock_ns, double saved_ns)
{
    estimated.op = op;
    estimated.stock_ns = stock_ns;
    estimated.saved_ns = saved_ns;
    estimated.is_open = true;
}

static inline bool take_estimate(ptac_op op)
{
    const bool is_of_this_call = estimated.is_open && estimated.op == op;

    estimated.is_open = false;
    return is_of_this_call;
}

void ptac_count_accelerated(ptac_op op)
{
    block *b = own();

    ADD(b->ops[op].accelerated, 1);
    if (take_estimate(op)) {
        ADD(b->ops[op].estimated_served_ns, estimated.stock_ns);
        ADD(b->ops[op].estimated_saved_ns, estimated.saved_ns);
        estimated.all_saved_ns += estimated.saved_ns;
    }
}

double ptac_estimated_saved_here(void)
{
    return estimated.all_saved_ns;
}

void ptac_count_forwarded(ptac_op op, ptac_reason reason)
{
    block *b = own();

    ADD(b->ops[op].forwarded[reason], 1);
    if (take_estimate(op))
        ADD(b->ops[op].estimated_stock_ns, estimated.stock_ns);
}

void ptac_count_failed(ptac_op op)
{
    block *b = own();

    ADD(b->ops[op].failed, 1);
}

void ptac_count_saved(ptac_op op, int64_t t_saved_ns)
{
    block *b = own();

    if (!__atomic_load_n(&was_timed[op], __ATOMIC_RELAXED) &&
        !__atomic_exchange_n(&was_timed[op], true, __ATOMIC_RELAXED))
        return;
    ADD(b->ops[op].t_saved_ns, t_saved_ns);
    ADD(b->ops[op].n_timed, 1);
}

static void add_block(ptac_op_counts *sum, const ptac_op_counts *part)
{
    sum->accelerated += READ(part->accelerated);
    sum->failed += READ(part->failed);
    sum->t_saved_ns += READ(part->t_saved_ns);
    sum->n_timed += READ(part->n_timed);
    sum->estimated_served_ns += READ(part->estimated_served_ns);
    sum->estimated_saved_ns += READ(part->estimated_saved_ns);
    sum->estimated_stock_ns += READ(part->estimated_stock_ns);
    for (int i = 0; i < PTAC_N_REASONS; i++)
        sum->forwarded[i] += READ(part->forwarded[i]);
}

void ptac_counters_read(ptac_op op, ptac_op_counts *sum)
{
    *sum = (ptac_op_counts){0};
    for (const block *b = __atomic_load_n(&blocks, __ATOMIC_ACQUIRE); b; b = b->next)
        add_block(sum, &b->ops[op]);
    add_block(sum, &shared.ops[op]);
}

/*
 * Sequentially consistent, because ptac_chooser_install() and the switch decide from
 * the other side: they change what they own, then look whether anyone is inside.
 */
void ptac_call_enter(void)
{
    block *b = own();

    __atomic_fetch_add(&b->depth, 1, __ATOMIC_SEQ_CST);
    ADD(b->entered, 1);
}

void ptac_call_leave(void)
{
    block *b = own();

    PTAC_ASSERT(READ(b->depth) > 0); /* entered, by this thread */
    __atomic_fetch_sub(&b->depth, 1, __ATOMIC_SEQ_CST);
}

int64_t ptac_calls_in_flight(void)
{
    int64_t sum = __atomic_load_n(&shared.depth, __ATOMIC_SEQ_CST);

    for (const block *b = __atomic_load_n(&blocks, __ATOMIC_ACQUIRE); b; b = b->next)
        sum += __atomic_load_n(&b->depth, __ATOMIC_SEQ_CST);
    return sum;
}

uint64_t ptac_calls_entered(void)
{
    uint64_t sum = READ(shared.entered);

    for (const block *b = __atomic_load_n(&blocks, __ATOMIC_ACQUIRE); b; b = b->next)
        sum += READ(b->entered);
    return sum;
}
