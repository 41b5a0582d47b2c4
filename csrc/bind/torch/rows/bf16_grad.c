/*
 * bf16_grad.c - how a gradient knows that its forward call ran in bfloat16.
 *
 * Whether a call may round is asked when forward runs: the user's autocast has a say
 * there, and may have none any more in the thread and at the time that backward runs.
 *
 * Attention's gradient is given the logsumexp of its forward call, and would be wrong
 * with that of the other precision. So the numbers say it themselves: the lowest bits
 * of the first of them, of no weight beside the rounding to bfloat16, spell a word.
 * The word goes where the numbers go: through saved-tensor hooks, threads and forks.
 *
 * A convolution's gradient is given nothing but tensors of the user's. Its mark is a
 * name of its node in autograd's graph: the thread that made it and its number there,
 * which no other node of the process ever has. Autograd makes the node right before it
 * calls the operator, so that forward knows the number; backward asks for the node that
 * is being computed. A mark that newer ones have replaced, or a node that cannot be
 * read, means a gradient in float32. Products are marked likewise, whose gradients are
 * products again.
 */
#include "bind/torch/rows/bf16.h"

#include <math.h>
#include <string.h>

enum {
    N_LETTERS = 64,
    LEAST_LETTERS = 48,
    N_MARKS = 1 << 15, /* nodes between a forward call and its gradient */
    NUMBER_BITS = 40,
    FIRST_OFFSET = 8, /* of a node, behind its table of functions */
    LAST_OFFSET = 64,
    N_SAMPLES = 3,
};

static const uint64_t sign = UINT64_C(0x9e3779b97f4a7c15);

static float *element(const ptac_view *view, int64_t i)
{
    float *at = view->data;

    for (int d = view->n_dims - 1; d >= 0; d--) {
        at += i % view->sizes[d] * view->strides[d];
        i /= view->sizes[d];
    }
    return at;
}

static bool letter(int64_t i)
{
    return sign >> i % N_LETTERS & 1;
}

/* Whether the numbers spell the word, once it is written where asked for. */
static bool spell(at_tensor sums, bool writes)
{
    int n_letters = 0;
    ptac_view view;

    ptac_view_of(sums, &view);
    if (view.dtype != PTAC_F32 || !view.data)
        return false;
    for (int64_t i = 0; i < view.n_elements && i < 2 * N_LETTERS; i++) {
        float *at = element(&view, i);
        uint32_t bits;

        if (!isfinite(*at)) /* infinity and NaN carry none */
            continue;
        memcpy(&bits, at, sizeof bits);
        if (writes) {
            bits = (bits & ~1u) | letter(i);
            memcpy(at, &bits, sizeof bits);
        } else if ((bits & 1) != letter(i)) {
            return false;
        }
        n_letters++;
    }
    return n_letters >= LEAST_LETTERS;
}

bool ptac_bf16_sign(at_tensor sums)
{
    return spell(sums, true);
}

bool ptac_bf16_is_signed(at_tensor sums)
{
    return spell(sums, false);
}

bool ptac_bf16_wants_grad(const at_tensor *inputs, int n)
{
    if (!T.aoti_torch_grad_mode_is_enabled())
        return false;
    for (int i = 0; i < n; i++)
        if (inputs[i] && (!T.requires_grad || T.requires_grad(*(void **)inputs[i])))
            return true;
    return false;
}

static uint64_t marks[N_MARKS];
static int number_word, thread_word; /* of a node; 0: not known */

/* 0 where there is none. */
static uint64_t name_of(uint64_t thread, uint64_t number)
{
    if (thread == 0 || thread >> (64 - NUMBER_BITS) || number >> NUMBER_BITS)
        return 0;
    return thread << NUMBER_BITS | number;
}

static uint64_t *place_of(uint64_t name)
{
    const uint64_t thread = name >> NUMBER_BITS;

    return &marks[(name + thread * 7919) % N_MARKS];
}

static bool can_mark(void)
{
    return __atomic_load_n(&thread_word, __ATOMIC_ACQUIRE) && T.requires_grad;
}

void ptac_bf16_mark(const at_tensor *inputs, int n)
{
    uint64_t next, name;

    if (!can_mark() || !ptac_bf16_wants_grad(inputs, n))
        return;
    next = T.next_node_number();
    name = next ? name_of(T.thread_number(), next - 1) : 0;
    if (name)
        __atomic_store_n(place_of(name), name, __ATOMIC_RELAXED);
}

/* std::shared_ptr: what it points to, and where the count is. */
typedef struct shared_pointer {
    void *object, *count;
} shared_pointer;

/*
 * Torch hands out a counted pointer, which its own code, or the C++ library's, lets go:
 * since 2.13 an intrusive one, as tensors are, before a std::shared_ptr.
 */
static void let_go(const at_result *node)
{
    at_tensor handle = NULL;

    if (T.node_is_shared) {
        shared_pointer held = {node->words[0], node->words[1]}, nothing = {NULL, NULL};

        T.shared_move(&held, &nothing);
        return;
    }
    if (T.aoti_torch_new_uninitialized_tensor(&handle))
        return; /* without memory the node stays */
    *(void **)handle = node->words[0];
    T.aoti_torch_delete_tensor_object(handle);
}

/* Of the gradient that this thread computes now: none, one that is marked, another. */
typedef enum gradient { NONE, MARKED, OTHER } gradient;

static gradient current(void)
{
    const at_result node = T.current_node();
    const uint64_t *words = node.words[0];
    uint64_t name;

    if (!words)
        return NONE;
    name = name_of(words[thread_word], words[number_word]);
    let_go(&node);
    return name && __atomic_load_n(place_of(name), __ATOMIC_RELAXED) == name ? MARKED
                                                                             : OTHER;
}

bool ptac_bf16_is_marked(void)
{
    return can_mark() && current() == MARKED;
}

bool ptac_bf16_may_follow(void)
{
    return can_mark() && current() != OTHER;
}

bool ptac_bf16_learn_nodes(void *const nodes[3], const uint64_t numbers[3])
{
    uint64_t threads[N_SAMPLES];
    int64_t number_at, thread_at = 0;

    if (!T.next_node_number || !T.thread_number || !T.current_node ||
        (T.node_is_shared && !T.shared_move) ||
        T.next_node_number() != numbers[N_SAMPLES - 1] + 1)
        return false;
    for (int i = 0; i < N_SAMPLES; i++)
        threads[i] = T.thread_number();
    number_at = ptac_only_offset(nodes, numbers, N_SAMPLES, FIRST_OFFSET, LAST_OFFSET);
    if (number_at)
        thread_at =
            ptac_only_offset(nodes, threads, N_SAMPLES, number_at + 8, LAST_OFFSET);
    if (!thread_at)
        return false;
    number_word = (int)number_at / 8;
    __atomic_store_n(&thread_word, (int)thread_at / 8, __ATOMIC_RELEASE);
    return true;
}
