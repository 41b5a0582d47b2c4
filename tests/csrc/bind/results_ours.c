/*
 * results_ours.c - our prototypes of C++ functions, tried on stand-ins for them.
 *
 * Built and run for x86-64 and, under qemu, for aarch64, where the address of a result
 * travels in another register.
 */
#include "bind/abi/torch_abi.h"

#include <stdio.h>

ptac_torch_symbols T;

#define CHECK(condition)                                                               \
    do {                                                                               \
        if (!(condition)) {                                                            \
            printf("line %d: %s\n", __LINE__, #condition);                             \
            return 1;                                                                  \
        }                                                                              \
    } while (0)

void theirs_adaptive(void), theirs_avg_pool(void), theirs_gradients(void);
void theirs_node(void);
long theirs_node_count(void);
void *shared_move(void *,
                  void *) __asm__("_ZNSt12__shared_ptrINSt10filesystem7__cxx11"
                                  "4_DirELN9__gnu_cxx12_Lock_policyE2EEaSEOS5_");

int main(void)
{
    const int64_t three = 3, two = 2, pair[2] = {6, 7};
    const at_ints ones = {&three, 1}, twos = {&two, 1}, pairs = {pair, 2};
    const at_optional_int divisor = {5, true};
    const at_optional_ints sizes = {ones, true};
    const at_mask3 mask = {{true, false, true}};
    int objects[3];
    void *tensors[3] = {&objects[0], &objects[1], &objects[2]};
    at_tensor x = (at_tensor)&tensors[0], y = (at_tensor)&tensors[1],
              z = (at_tensor)&tensors[2];
    at_result made;

    *(void **)&T.cpu_adaptive_avg_pool2d = theirs_adaptive;
    *(void **)&T.cpu_avg_pool2d = theirs_avg_pool;
    *(void **)&T.convolution_backward = theirs_gradients;
    *(void **)&T.current_node = theirs_node;
    *(void **)&T.shared_move = shared_move;
    made = T.cpu_adaptive_avg_pool2d(x, pairs);
    CHECK(made.words[0] == tensors[0]);
    made = T.cpu_avg_pool2d(y, ones, twos, ones, true, false, divisor);
    CHECK(made.words[0] == tensors[1]);
    made = T.convolution_backward(x, y, z, sizes, twos, ones, pairs, false, pairs, 9,
                                  mask);
    for (int i = 0; i < 3; i++)
        CHECK(made.words[i] == tensors[2 - i]);

    /* A counted pointer is let go by the C++ library's own code. */
    CHECK(theirs_node_count() == 1);
    made = T.current_node();
    CHECK(((long *)made.words[0])[3] == 4 && theirs_node_count() == 2);

    void *held[2] = {made.words[0], made.words[1]}, *nothing[2] = {NULL, NULL};

    T.shared_move(held, nothing);
    CHECK(!held[0] && !held[1] && theirs_node_count() == 1);
    return 0;
}
